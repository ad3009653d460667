# SPDX-License-Identifier: MIT OR Apache-2.0
"""wheel.py VERSION EXTENSION OUT: make a wheel of the package `fermata` and its extension module, a shared library for Python 3.11 and later.

A wheel is a zip file with metadata (PEP 427). The same files give the same wheel.
"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

TAG = "cp311-abi3-linux_x86_64"
FOLDER = Path(__file__).parent
METADATA = """\
Metadata-Version: 2.1
Name: fermata
Version: {version}
Summary: Jobs on accelerator cards that the kernel module fermata shares
License: MIT OR Apache-2.0
Requires-Python: >=3.11
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: fermata
Root-Is-Purelib: false
Tag: {tag}
"""


def record(files):
    """Return the lines of RECORD, files and digests, except for the line of RECORD itself, which has no digest."""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        yield f"{name},sha256={digest},{len(data)}\n"


def main():
    version, extension, out = sys.argv[1:]
    info = f"fermata-{version}.dist-info"
    files = {f"fermata/{file.name}": file.read_bytes() for file in sorted((FOLDER / "fermata").glob("*.py*")) if file.is_file()}
    files["fermata/_fermata.abi3.so"] = Path(extension).read_bytes()
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=TAG).encode()
    files[f"{info}/RECORD"] = ("".join(record(files)) + f"{info}/RECORD,,\n").encode()
    path = Path(out) / f"fermata-{version}-{TAG}.whl"
    new = path.with_suffix(".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            wheel.writestr(entry, data)
    new.rename(path)
    print(path)


if __name__ == "__main__":
    main()
