// SPDX-License-Identifier: GPL-2.0
/*
 * killat STEP SIGNAL COMMAND...: runs a command, and sends it the signal before its system call number
 * STEP, counted from 1 in its first thread. Exits with 0 if the signal was sent and the command has
 * ended, and with 1 if the command ended by itself before that.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long step = argc > 3 ? atol(argv[1]) : 0, calls = 0;
	int number = argc > 3 ? atoi(argv[2]) : 0, status, deliver = 0;
	bool entry = true, sent = false;
	pid_t pid;

	if (step <= 0 || number <= 0) {
		fputs("usage: killat STEP SIGNAL COMMAND...\n", stderr);
		return 2;
	}
	pid = fork();
	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		execvp(argv[3], argv + 3);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) {
		perror("killat");
		return 2;
	}
	ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)(long)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
	while (!sent) {
		ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(long)deliver);
		deliver = 0;
		if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
			return WIFEXITED(status) && WEXITSTATUS(status) == 127 ? 2 : 1;
		if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
			deliver = WSTOPSIG(status);
			continue;
		}
		calls += entry;
		if (entry && calls == step) {
			kill(pid, number);
			sent = true;
		}
		entry = !entry;
	}
	/* A signal other than SIGKILL is delivered by the tracer; it may be handled by any thread. */
	ptrace(PTRACE_DETACH, pid, NULL, NULL);
	return waitpid(pid, &status, 0) == pid ? 0 : 2;
}
