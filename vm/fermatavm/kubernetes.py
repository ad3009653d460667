# SPDX-License-Identifier: GPL-2.0
"""Run cargo on tools/kubernetes, a separate workspace, which compiles the interfaces of the kubelet.

python3 -m fermatavm.kubernetes CARGO-ARGUMENT... is `cargo CARGO-ARGUMENT...` in that workspace. The interfaces are .proto files (PROTOS)
of a crate. cargo fetches the crate to its registry on first use, and nothing compiles the crate.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .common import BUILD, CACHE, TOP, die, locked, say

CRATE, VERSION = "k8s-device-plugin-proto", "0.2.0"
# The files below kubelet/pkg/apis of the crate, with their SHA-256.
PROTOS = {
    "deviceplugin/v1beta1/api.proto": "b780bfeac99c93c231dc165ce417f4da88481eececa0c65eeb90f5f2e9b5b65b",
    "dra/v1/api.proto": "b3066ad7f6abcfd0003c47b06ceb801d76997d78d6be505597478d3905b9cc57",
    "dra-health/v1alpha1/api.proto": "75f8c523ec546ceb83bd63f3b7a38c23d979494e7015db12d146e2f39dd4528e",
    "pluginregistration/v1/api.proto": "7a67a0000a1a167c155286834bc9ccb489f8bcdb394e006daba270189c272afa",
}
WORKSPACE = TOP / "tools/kubernetes"
MANIFEST = f"""[package]
name = "fetch"
version = "0.0.0"
edition = "2021"

[dependencies]
{CRATE} = "={VERSION}"
"""


def crate(folder):
    """Fetch the crate, by way of a package in a folder that depends on the crate. Return the crate's folder."""
    (folder / "src").mkdir(parents=True)
    (folder / "src/lib.rs").touch()
    (folder / "Cargo.toml").write_text(MANIFEST)
    say(f"fetching {CRATE} {VERSION}")
    done = subprocess.run(["cargo", "metadata", "--quiet", "--format-version", "1"], cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        die("cargo's registry cannot be reached: connect, then try again")
    [found] = [package for package in json.loads(done.stdout)["packages"] if package["name"] == CRATE]
    return Path(found["manifest_path"]).parent


def protos():
    """Return the folder of the .proto files, which is in the cache and is made on first use."""
    key = hashlib.sha256(json.dumps([VERSION, PROTOS]).encode()).hexdigest()[:12]
    folder = CACHE / f"protos-{key}"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            temporary = folder.with_name(f"{folder.name}.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            source = crate(temporary / "fetch") / "kubelet/pkg/apis"
            for name, wanted in PROTOS.items():
                data = (source / name).read_bytes()
                if hashlib.sha256(data).hexdigest() != wanted:
                    die(f"{CRATE} {VERSION}: {name} is not the file that PROTOS names")
                file = temporary / "protos" / name
                file.parent.mkdir(parents=True)
                file.write_bytes(data)
            (temporary / "protos").rename(folder)
            shutil.rmtree(temporary)
    return folder


def cargo(*args):
    """Run cargo in the workspace. Return the status."""
    environment = os.environ | {"FERMATA_PROTOS": str(protos()), "CARGO_TARGET_DIR": str(BUILD / "cargo-kubernetes")}
    return subprocess.run(["cargo", *args], cwd=WORKSPACE, env=environment).returncode


if __name__ == "__main__":
    sys.exit(cargo(*sys.argv[1:]))
