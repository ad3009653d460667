# SPDX-License-Identifier: GPL-2.0
"""Builds programs, and what the machine boots with.

The card server is for the host; tests and tools are for build/guest, which is laid over the root of the guest, a busybox initramfs. The
initramfs is an uncompressed newc archive, since unpacking is slow under TCG.
"""

import hashlib
import lzma
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from .common import BUILD, CACHE, JOBS, TOP, die, host_path, locked, need_space, run, say, working

# The archive's sources in the build root.
SOURCES = Path("/etc/apt/sources.list")
CARGO = BUILD / "cargo/x86_64-unknown-linux-gnu"
# Modules of the kernel that every initramfs has, to be loaded on demand.
ON_DEMAND = ["virtio_pci", "virtio_console", "virtio_iommu", "vfio_pci", "vfio_iommu_type1", "aer_inject", "button", "virtio_blk", "fuse"]

# The files of the libraries, as `make install` installs them.
LIBRARIES = BUILD / "guest-libraries/root"


class Profile:
    """Where programs are, for tests or (`release`) for benchmarks. Programs are static, so that the guest's programs run on the host,
    too."""

    def __init__(self, release):
        self.built = CARGO / ("release" if release else "debug")
        self.parts = BUILD / ("guest-release" if release else "guest")
        self.programs = self.parts / "bin"
        self.card = self.built / "fermata-card"
        self.foreign_card = BUILD / ("foreign-card-release" if release else "foreign-card") / "fermata-card"
        # The whole workspace is built, as `cargo test` builds it: another choice of packages would enable other features of
        # dependencies, and compile them again.
        self.all = [] if release else ["--workspace", "--bins", "--examples"]
        self.release = ["--release"] if release else []

    def build(self, *wanted):
        """Build by cargo; return whether the build succeeded. In a run of vm/check whose step `programs` has built them, do nothing:
        cargo would wait for other steps that use it."""
        if not self.release and os.environ.get("FERMATA_BUILT") == str(TOP):
            return True
        kind = "optimised programs" if self.release else "programs"
        first = not self.built.exists()
        what = f"building the {kind} and the card (about 5 minutes, once)" if first else f"building the {kind} that have changed"
        # On a terminal cargo shows by itself how far it is.
        with working(what, after=0 if first else 5, counter=False):
            return cargo("build", *self.release, *(self.all or wanted))


TESTED, MEASURED = Profile(False), Profile(True)


def members():
    manifest = TOP / "Cargo.toml"
    if not manifest.exists():
        return []
    patterns = tomllib.loads(manifest.read_text())["workspace"]["members"]
    return sorted({path for pattern in patterns for path in TOP.glob(pattern) if (path / "Cargo.toml").exists()})


def cargo(*args):
    return run(["cargo", *args, "--locked", "-j", JOBS], check=False, cwd=TOP).returncode == 0


def build_card(profile):
    """Build the card server."""
    with locked(BUILD / ".guest.lock"):
        profile.build("--package", profile.card.name, "--bins") or die("the card server does not build")


def build_foreign_card(profile):
    """Build the card server that loads libraries."""
    environment = {"LIBRARIES": str(profile.foreign_card.parent), "PROFILE": "release" if profile.release else "dev"}
    with locked(BUILD / ".guest.lock"):
        run([TOP / "packaging/libraries", "card"], env=os.environ | environment)


def build(kernel, profile):
    """Build the guest's static programs, if anything has changed.

    A part that does not build is left out with a message. A run that does not need the part continues; a run that does fails at once.
    """
    with locked(BUILD / ".guest.lock"):
        for part, make in (("bin", tools), ("selftests", selftests), ("examples", examples)):
            folder = profile.parts / part
            folder.mkdir(parents=True, exist_ok=True)
            built = make(kernel, profile)
            for old in folder.iterdir():
                if old.name not in {file.name for file in built}:
                    old.unlink()
            for file in built:
                copy(file, folder / file.name)


def payload(which, profile):
    """Return the programs to put into the machine, and where. These are not always all programs, because the debug kernel takes half a
    minute to unpack all of them."""
    return {"all": [(profile.parts, "")], "selftests": [(profile.parts / "selftests", "selftests")], "none": []}[which]


def programs(folder):
    return [file for file in folder.iterdir() if file.is_file() and file.stat().st_mode & 0o100 and not file.suffix]


def tools(_kernel, profile):
    """Build the binaries of all workspace members below tools/."""
    paths = [path for path in members() if path.parent == TOP / "tools"]
    names = [tomllib.loads((path / "Cargo.toml").read_text())["package"]["name"] for path in paths]
    if not names:
        return []
    if not profile.build("--bins", *(f"--package={name}" for name in names)):
        say("the tools do not build: the machine goes without them")
        return []
    binaries = [name for path, name in zip(paths, names, strict=True) if (path / "src/main.rs").exists()]
    binaries += [file.stem for path in paths for file in path.glob("src/bin/*.rs")]
    return [profile.built / name for name in binaries]


def selftests(kernel, _profile):
    """Build the programs of selftests/Makefile."""
    out = BUILD / "selftests"
    cmd = ["make", "-s", f"-j{JOBS}", "-C", TOP / "selftests", f"OUT={out}", f"KSFT_INC={kernel.kselftest}"]
    if not (TOP / "selftests/Makefile").exists() or run(cmd, check=False).returncode:
        say("the selftests do not build: the machine goes without them")
        return []
    return programs(out)


def examples(_kernel, profile):
    """Build the programs of examples/Makefile, and libfermata's examples as NAME-rust."""
    out = BUILD / "examples"
    made = run(["make", "-s", "-C", TOP / "examples", f"OUT={out}", "LDFLAGS=-static"], check=False).returncode == 0
    if not made or not profile.build("--examples", "--package=libfermata"):
        say("the examples do not build: the machine goes without them")
        return []
    for source in (TOP / "tools/libfermata/examples").glob("*.rs"):
        copy(profile.built / f"examples/{source.stem}", out / f"{source.stem}-rust")
    return programs(out)


def build_libraries():
    """Build the libraries for C and Python, not optimised, and install them to LIBRARIES.

    Machines that run may have the folder mounted. It is replaced only if it has changed.
    """
    built, new = LIBRARIES.with_name("built"), LIBRARIES.with_name("new")
    with locked(BUILD / ".guest.lock"):
        run([TOP / "packaging/libraries", "c", "python"], env=os.environ | {"LIBRARIES": str(built), "PROFILE": "dev"})
        shutil.rmtree(new, ignore_errors=True)
        parts = ["install-dev", "install-c-library", "install-python"]
        command = ["make", "-s", "-C", TOP / "packaging", *parts, f"LIBRARIES={built}", f"DESTDIR={new}", "prefix=/usr"]
        run(command, log=built / "install.log")
        if run(["diff", "-qr", LIBRARIES, new], log=built / "install.log", check=False).returncode:
            shutil.rmtree(LIBRARIES, ignore_errors=True)
            new.rename(LIBRARIES)


def copy(source, dest):
    """Copy a program without its debugging information, since the guest has its files in memory. Scripts and programs for other
    machines are copied unchanged."""
    if not dest.exists() or dest.stat().st_mtime < source.stat().st_mtime:
        shutil.copy2(source, dest)
        run(["strip", "--strip-debug", dest], check=False, stderr=subprocess.DEVNULL)


class Archive:
    """An archive in the newc format, whose entries belong to root."""

    def __init__(self, file):
        self.file, self.count, self.dirs = file, 0, {""}

    def _entry(self, name, mode, data):
        self.count += 1
        fields = [self.count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        self.file.write(head + b"\0" * (-len(head) % 4))
        self.file.write(data)
        self.file.write(b"\0" * (-len(data) % 4))

    def parents(self, name):
        parent = os.path.dirname(name)
        if parent not in self.dirs:
            self.dirs.add(parent)
            self.parents(parent)
            self._entry(parent, stat.S_IFDIR | 0o755, b"")

    def write(self, name, data, mode=0o644):
        self.parents(name)
        self._entry(name, stat.S_IFREG | mode, data)

    def link(self, name, target):
        self.parents(name)
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def folder(self, name):
        self.parents(name + "/x")

    def add(self, path, name):
        """Add a file, a link or a tree."""
        if path.is_symlink():
            self.link(name, os.readlink(path))
        elif path.is_dir():
            self.folder(name)
            for child in sorted(path.iterdir()):
                self.add(child, f"{name}/{child.name}".lstrip("/"))
        else:
            self.write(name, path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)

    def close(self):
        self._entry("TRAILER!!!", 0, b"")


def index(kernel):
    """Return the kernel's modules: {name: [path, paths of the modules that it needs...]}, without built-in modules."""
    found = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        found[path.rsplit("/", 1)[-1].split(".")[0].replace("-", "_")] = [path, *needs.split()]
    return found


def add_modules(archive, kernel, wanted):
    """Add modules, uncompressed, with an index of these modules only."""
    release = kernel.info["release"]
    with tempfile.TemporaryDirectory() as tmp:
        lib = Path(tmp) / "lib/modules" / release
        lib.mkdir(parents=True)
        known = index(kernel)
        for path in {path for name in wanted for path in known.get(name, [])}:
            dest = lib / path.removesuffix(".xz")
            dest.parent.mkdir(parents=True, exist_ok=True)
            data = (kernel.modules / path).read_bytes()
            dest.write_bytes(lzma.decompress(data) if path.endswith(".xz") else data)
        subprocess.run(["depmod", "-b", tmp, release], check=True, stderr=subprocess.DEVNULL)
        archive.add(Path(tmp) / "lib", "lib")


def write_initramfs(path, kernel, config, load, command, payload):
    """Write the archive: `config` becomes /etc/fermata, `command` becomes /command, `payload` is pairs of source and name.

    Modules in `load` that are built into the kernel are left out.
    """
    with open(path, "wb") as file:
        archive = Archive(file)
        for name in ("bin", "dev", "proc", "sys", "tmp", "run", "root", "etc", "mnt"):
            archive.folder(name)
        archive.add(Path("/usr/bin/busybox"), "bin/busybox")
        archive.link("bin/sh", "busybox")
        archive.add(TOP / "vm/init", "init")
        archive.write("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\ntenant:x:1000:1000::/tmp:/bin/sh\nother:x:1001:1001::/tmp:/bin/sh\n")
        archive.write("etc/group", b"root:x:0:\ntenant:x:1000:\nother:x:1001:\n")
        known = index(kernel)
        config = config | {"MODULES": " ".join(name for name in load if name.replace("-", "_") in known)}
        archive.write("etc/fermata", "".join(f"{k}='{v}'\n" for k, v in config.items()).encode())
        archive.write("command", command.encode())
        add_modules(archive, kernel, [*ON_DEMAND, *(name.replace("-", "_") for name in load)])
        for source, name in payload:
            archive.add(Path(source), name.lstrip("/"))
        archive.close()


class Unreachable(Exception):
    """Debian's archive cannot be reached."""


def layer_key(packages):
    """Return the key of a layer: the packages, and the Debian system that has their dependencies."""
    installed = Path("/var/lib/dpkg/status").read_bytes()
    return hashlib.sha256(" ".join(packages).encode() + installed).hexdigest()[:12]


def apt(folder, suites, kinds=("deb",)):
    """Return the command apt-get, with lists in `folder` of the build root's suite and of `suites`. Raise Unreachable."""
    for name in ("lists/partial", "archives/partial", "sources"):
        (folder / name).mkdir(parents=True)
    _, *options, _, component = SOURCES.read_text().splitlines()[0].split()
    lines = [" ".join([kind, *options, suite, component]) for suite in suites for kind in kinds]
    (folder / "sources/suites.list").write_text("".join(f"{line}\n" for line in lines))
    places = {"State::Lists": "lists", "Cache": "", "Cache::archives": "archives", "Etc::SourceParts": "sources"}
    # The build root is read-only, and apt cannot become another user in a user namespace.
    options = [*(f"Dir::{key}={folder / place}" for key, place in places.items()), "APT::Sandbox::User=root", "Debug::NoLocking=1"]
    command = ["apt-get", *(word for option in options for word in ("-o", option))]
    if run([*command, "-o", "APT::Update::Error-Mode=any", "update"], log=folder / "log", check=False).returncode:
        raise Unreachable(f"Debian's archive cannot be reached: see {host_path(folder / 'log')}")
    return command


def download(packages, folder):
    """Download the packages, and their dependencies that the build root lacks. Return the files."""
    suites = {suite for _, _, suite in (name.partition("/") for name in packages) if suite}
    command = apt(folder, suites)
    run([*command, "--yes", "--no-install-recommends", "--download-only", "install", *packages], log=folder / "log")
    return sorted((folder / "archives").glob("*.deb"))


def layer(name, packages):
    """Return the folder with the files of Debian packages that one test needs, which `vm/boot --layer` lays over the Debian system of the
    build root. Raise Unreachable.

    The folder is in the cache and is made on first use. The packages' scripts do not run. PACKAGE/SUITE names a package of another
    suite of Debian.
    """
    root = CACHE / f"layer-{name}-{layer_key(packages)}"
    with locked(root.with_name(f"{root.name}.lock")):
        if not root.exists():
            need_space(1)
            temporary = root.with_name(f"{root.name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            with working(f"downloading {', '.join(packages)} (up to a minute, once)"):
                for file in download(packages, temporary):
                    run(["dpkg-deb", "--extract", file, temporary / "root"])
            (temporary / "root").rename(root)
            shutil.rmtree(temporary)
    return root


if __name__ == "__main__":
    sys.exit(not TESTED.build())
