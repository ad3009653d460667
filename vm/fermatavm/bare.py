# SPDX-License-Identifier: GPL-2.0
"""Try what README promises on a bare Debian: the build root is made by a checkout and `make` alone, and nothing is installed.

python3 -m fermatavm.bare bookworm|trixie prints TAP. The machine is a root that has what a minimal Debian has, and make. The checkout is a
copy of the files that git tracks. The points: as root; as a user, where the first try ends with one line that says what is missing,
because a minimal Debian has no uidmap; as a user after the command that this line names."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .common import CACHE, TOP, Points, locked, need_space, run, say

# What `make demo` begins with.
TRY = "cd ~/fermata && vm/enter true"
USER = "setpriv --reuid=1000 --regid=1000 --clear-groups env HOME=/home/tester"
# Not the build root's variables.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} | {
    name: os.environ[name] for name in ("http_proxy", "https_proxy", "no_proxy", "FERMATA_MIRROR") if name in os.environ
}
# In a new mount namespace: the bare root ($1) below an overlay whose upper folder is $2, then the command.
INSIDE = """
mount -t overlay -o lowerdir="$1",upperdir="$2/upper",workdir="$2/work" overlay "$2/root"
cd "$2/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs tmp
cp /etc/resolv.conf etc/resolv.conf
mount --bind "$2/home" home
pivot_root . mnt
umount -l mnt
exec sh -c "$3"
"""


def bare_root(suite):
    """Return the root of a minimal Debian with make, which is made on first use."""
    root = CACHE / f"bare-{suite}"
    with locked(root.with_name(f"{root.name}.lock")):
        if not root.exists():
            need_space(1)
            say(f"making a bare Debian {suite}")
            shutil.rmtree(CACHE / f"bare-{suite}.tmp", ignore_errors=True)
            temporary = CACHE / f"bare-{suite}.tmp"
            options = ["--mode=root", "--variant=minbase", "--include=make", "--aptopt=APT::Sandbox::User root"]
            options += ["--customize-hook=chroot \"$1\" useradd --create-home --home-dir /home/tester --uid 1000 tester"]
            mirror = [os.environ["FERMATA_MIRROR"]] if "FERMATA_MIRROR" in os.environ else []
            log = root.with_name(f"{root.name}.log")
            run(["mmdebstrap", *options, suite, temporary, *mirror], log=log, env=os.environ | {"TMPDIR": str(CACHE)})
            temporary.rename(root)
    return root


class Machine:
    """A bare Debian whose changes are in the folder `upper`, and whose homes hold a checkout and the cache."""

    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        for name in ("upper", "work", "root", "home/tester", "home/root"):
            (folder / name).mkdir(parents=True)
        tracked = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=TOP, capture_output=True, check=True).stdout
        for home in ("tester", "root"):
            copy = folder / f"home/{home}/fermata"
            subprocess.run(["rsync", "-a", "--from0", "--files-from=-", f"{TOP}/", f"{copy}/"], input=tracked, check=True)
        subprocess.run(["chown", "-R", "1000:1000", folder / "home/tester"], check=True)

    def do(self, command, user=False):
        """Run a command as root or as the user; return its status and what it printed."""
        who = f"{USER} " if user else "env HOME=/home/root "
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-euc", INSIDE, "sh"]
        done = subprocess.run(
            [*words, self.root, self.folder, f"exec {who}sh -c {shlex.quote(command)}"], env=ENVIRONMENT,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        print("".join(f"# {line}\n" for line in done.stdout.splitlines()), end="", flush=True)
        return done.returncode, done.stdout

    def has_root(self, home):
        return any((self.folder / f"home/{home}/.cache/fermata").glob("root-*/.complete"))

    def changed(self):
        """Return the files outside /home and /tmp that differ from the bare root's."""
        upper = self.folder / "upper"
        return sorted(str(file.relative_to(upper)) for file in upper.rglob("*") if not file.is_dir() and file.name != "resolv.conf")

    def end(self):
        """Remove the folder; in it are files of subordinate users."""
        shutil.rmtree(self.folder, ignore_errors=True)


def main():
    root = bare_root(sys.argv[1])
    points = Points(5)
    machine = Machine(root, Path(tempfile.mkdtemp(dir=CACHE, prefix="tmp-bare-")))
    try:
        status, _ = machine.do(TRY)
        points.point(status == 0 and machine.has_root("root"), "root: the build root is made")
        points.point(not machine.changed(), f"root: nothing is installed ({', '.join(machine.changed()[:5])})")
        shutil.rmtree(machine.folder / "home/root/.cache", ignore_errors=True)
        status, printed = machine.do(TRY, user=True)
        says = [line for line in printed.splitlines() if "apt-get install uidmap" in line]
        points.point(status != 0 and len(says) == 1, "user: one line says what is missing")
        status, _ = machine.do("apt-get -qq update && apt-get -qq install --no-install-recommends uidmap && grep -q tester /etc/subuid")
        points.point(status == 0, "user: the command of that line works")
        status, _ = machine.do(TRY, user=True)
        points.point(status == 0 and machine.has_root("tester"), "user: the build root is made")
    finally:
        machine.end()
    points.end()


if __name__ == "__main__":
    main()
