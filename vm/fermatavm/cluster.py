# SPDX-License-Identifier: GPL-2.0
"""A cluster of Kubernetes 1.20.2 with one node, and with cards (docs/deploy/kubernetes.md), in a machine with the Debian system.

python3 -m fermatavm.cluster [OPTION of vm/boot]... runs packaging/tests/cluster, which prints TAP. build/kubernetes-dev must be up to
date (make kubernetes PROFILE=dev). python3 -m fermatavm.cluster --build only builds the programs of Kubernetes.

The programs are built from the source package of Debian bookworm, with bookworm's Go, and kept in the cache. Debian's binary package
contains only kubectl.
"""

import hashlib
import inspect
import json
import os
import shutil
import sys

from . import boot, guest
from .common import CACHE, JOBS, Timer, die, host_path, locked, need_space, run, say

SUITE = "bookworm"
VERSION = "1.20.2"
SOURCE = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1"
GO = ["golang-1.19-go=1.19.8-2", "golang-1.19-src=1.19.8-2"]
# What apt downloads, which checks the signature of the archive, with the SHA-256 of each file.
FILES = {
    "kubernetes_1.20.5+really1.20.2.orig.tar.gz": "b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc",
    "kubernetes_1.20.5+really1.20.2-1.1+deb12u1.debian.tar.xz": "9b6e5fd41769d2b5badf2e73b274e3bcd90f85e13d06a1a4a845ccce018127d8",
    "kubernetes_1.20.5+really1.20.2-1.1+deb12u1.dsc": "19fa1da5aefcef673894ac9511986bd98a14410cf8eea0b626613c30df435257",
    "golang-1.19-go_1.19.8-2_amd64.deb": "545123039b6c79e75cf2d86528781a825424cf33ce9d3f4513d772d7144cd531",
    "golang-1.19-src_1.19.8-2_all.deb": "2dfa82fe4f08f4e0193c532e561af4c91871f5235608f04f2bb8d57bb288df5a",
}
PROGRAMS = ["kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet", "kubectl"]
# The rest of the cluster, from the build root's suite.
PACKAGES = ["etcd-server", "containerd", "runc", "containernetworking-plugins", "podman", "crun"]
OPTIONS = ["--debian", "--layer", f"cluster={','.join(PACKAGES)}", "--modprobe", "veth", "--memory", "2G", "--iommu", "intel"]
OPTIONS += ["--card", "profile=relay,slots=counter_up", "--params", "preempt_timeout_us=10000000", "--name", "cluster", "--timeout", "5400"]


def download(folder):
    """Download FILES from the archive that the build root comes from. Raise guest.Unreachable."""
    apt = guest.apt(folder, [SUITE], kinds=("deb", "deb-src"))
    (folder / "files").mkdir()
    for wanted in (["source", "--download-only", SOURCE], ["download", *GO]):
        run([*apt, *wanted], log=folder / "log", cwd=folder / "files")
    for name, wanted in FILES.items():
        if hashlib.sha256((folder / "files" / name).read_bytes()).hexdigest() != wanted:
            die(f"{name} is not the file that FILES names")


def openapi_packages(source):
    """Return the packages whose types the API server describes, as generators of Kubernetes name them."""
    marked, openapi = set(), "k8s.io/kube-openapi"
    for below, name in (("staging/src/k8s.io", "k8s.io"), (f"vendor/{openapi}", openapi), ("pkg", "k8s.io/kubernetes/pkg")):
        for file in (source / below).rglob("*.go"):
            if "+k8s:openapi-gen=" in file.read_text():
                marked.add(f"{name}/{file.parent.relative_to(source / below)}")
    others = ("testdata", "code-generator", "sample-", "kube-openapi/test", "kube-openapi/cmd", "kube-openapi/pkg/generators")
    return sorted(package for package in marked if not any(other in package for other in others))


def compile_programs(folder):
    """Unpack the files that were downloaded, and compile PROGRAMS into `folder`/programs."""
    log, files, source = folder / "log", folder / "files", folder / "path/src/k8s.io/kubernetes"
    [dsc] = [name for name in FILES if name.endswith(".dsc")]
    source.parent.mkdir(parents=True)
    # The keys of Debian's maintainers are not in the build root; FILES has the hash of the signed file.
    run(["dpkg-source", "--no-check", "--extract", files / dsc, source], log=log)
    for name in FILES:
        if name.endswith(".deb"):
            run(["dpkg-deb", "--extract", files / name, folder / "go"], log=log)
    root = folder / "go/usr/lib/go-1.19"
    environment = os.environ | {
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}", "GOROOT": str(root), "GOPATH": str(folder / "path"),
        "GOCACHE": str(folder / "objects"), "GOTMPDIR": str(folder / "objects"),
        "GO111MODULE": "off", "GOPROXY": "off", "CGO_ENABLED": "0", "GOMAXPROCS": str(JOBS),
    }  # fmt: skip
    (folder / "objects").mkdir()
    go = ["nice", "go", "build", "-p", JOBS]
    generator, generated = folder / "openapi-gen", "pkg/generated/openapi"
    run([*go, "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"], log=log, cwd=source, env=environment)
    command = ["nice", generator, "--logtostderr", "--input-dirs", ",".join(openapi_packages(source))]
    command += ["--output-package", f"k8s.io/kubernetes/{generated}", "--output-file-base", "zz_generated.openapi"]
    command += ["--report-filename", folder / "violations"]
    run([*command, "--go-header-file", "hack/boilerplate/boilerplate.generatego.txt"], log=log, cwd=source, env=environment)
    major, minor, _ = VERSION.split(".")
    values = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = ["-s", "-w"]
    for package in ("component-base/version", "client-go/pkg/version"):
        flags += [f"-X=k8s.io/kubernetes/vendor/k8s.io/{package}.{key}={value}" for key, value in values.items()]
    (folder / "programs").mkdir()
    commands = [f"./cmd/{name}" for name in PROGRAMS]
    run([*go, f"-ldflags={' '.join(flags)}", "-o", f"{folder / 'programs'}/", *commands], log=log, cwd=source, env=environment)


def programs():
    """Return the folder of PROGRAMS, which is in the cache and is made on first use. Raise guest.Unreachable."""
    recipe = json.dumps([SOURCE, GO, FILES, PROGRAMS]) + inspect.getsource(compile_programs) + inspect.getsource(openapi_packages)
    folder = CACHE / f"kubernetes-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            need_space(6)
            temporary, timer = folder.with_name(f"{folder.name}.tmp"), Timer()
            shutil.rmtree(temporary, ignore_errors=True)
            say(f"building Kubernetes {VERSION} from Debian's source (15 to 20 minutes): {host_path(temporary / 'log')}")
            download(temporary)
            compile_programs(temporary)
            (temporary / "programs").rename(folder)
            shutil.rmtree(temporary)
            say(f"built Kubernetes {VERSION} in {timer}")
    return folder


def main(*options):
    try:
        folder = programs()
    except guest.Unreachable as error:
        say(error)
        print("1..0 # SKIP no source of Kubernetes")
        return 0
    if options == ("--build",):
        return 0
    return boot.run(boot.parse([*OPTIONS, *options, "--", "debian", "sh", "/fermata/packaging/tests/cluster", str(folder)]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
