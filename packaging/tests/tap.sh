# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# TAP points for scripts that run in the machine: plan N, then point WHAT COMMAND...

number=0
failed=0
plan() { echo "TAP version 13"; echo "1..$1"; }
point() {
	what=$1
	shift
	number=$((number + 1))
	if "$@" >/tmp/point 2>&1; then
		echo "ok $number $what"
	else
		failed=$((failed + 1))
		sed 's/^/# /' /tmp/point
		echo "not ok $number $what"
	fi
}
# Runs a command until it succeeds, at most TRIES times, with PAUSE seconds in between. Shows the output of the last run if none succeeded.
retry() {
	tries=$1
	pause=$2
	shift 2
	until "$@" >/tmp/waits 2>&1; do
		[ $((tries -= 1)) -gt 0 ] || { cat /tmp/waits; return 1; }
		sleep "$pause"
	done
}
# The command must fail, and its output or the kernel's messages since then must contain the words.
refused() {
	words=$1
	shift
	dmesg -c >/dev/null
	! "$@" >/tmp/said 2>&1 || return 1
	dmesg >>/tmp/said
	cat /tmp/said
	grep -q "$words" /tmp/said
}
# Prints the lines of a page's fenced block from the first line that begins with these words to the end of the block.
block() { awk -v first="$1" 'index($0, first) == 1 { on = 1 } /^\140\140\140/ { on = 0 } on' "$2"; }
