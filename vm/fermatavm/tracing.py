# SPDX-License-Identifier: GPL-2.0
"""Run the examples of docs/tracing.md, unchanged, in the Debian system of the machine, while two tenants share a slot."""

import re
import sys
import tempfile
from pathlib import Path

from . import boot
from .common import BUILD, TOP, die, say

SECTION = re.compile(r"^### (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```sh step=tracing\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What each example must print about a shared slot.
EXPECTED = {
    "perf": [
        r"fermata:fermata_pause: .* why=slice waiter=\d+",
        r"fermata:fermata_start: .* resume=1 why=turn",
        r"\d+ +fermata:fermata_start",
    ],
    "bpftrace": [r"@waited_us\[\d+\]:", r"@why\[\d+\]: \d+"],
    "trace-cmd": [r"fermata_stop: .* why=paused", r"fermata_start: .* resume=1 why=turn"],
}
LOAD = """
tenant() {
	fermatactl run membench /bin/busybox --count 1000000000000 --set timeslice=1ms --set preempt-timeout=10s >/dev/null 2>&1 &
	load="$load $!"
}
tenant
tenant
until [ "$(fermatactl list | grep -c 'fermatactl run')" = 2 ]; do sleep 0.1; done
"""


def examples():
    """Return {heading below "Examples": the lines of its block}."""
    text = (TOP / "docs/tracing.md").read_text().split("\n## Examples\n")[1].split("\n## ")[0]
    pieces = SECTION.split(text)
    blocks = zip(pieces[1::2], pieces[2::2], strict=True)
    return {name: "".join(BLOCK.findall(block)) for name, block in blocks}


def main():
    found = examples()
    if set(found) != set(EXPECTED):
        die(f"docs/tracing.md has examples of {sorted(found)}, and {sorted(EXPECTED)} are expected")
    with tempfile.TemporaryDirectory() as folder:
        options = ["--name", "tracing", "--timeout", "900", "--iommu", "intel", "--debian", "--card", "profile=irq"]
        script = [LOAD]
        for name, text in found.items():
            file = Path(folder) / f"{name}.sh"
            file.write_text("set -e\n" + text)
            options += ["--add", f"{file}:examples/{name}.sh"]
            script.append(f"debian bash /machine/examples/{name}.sh >/report/{name}.txt 2>&1 || {{ cat /report/{name}.txt; failed=1; }}")
        script.append('kill $load; wait; [ -z "$failed" ]')
        status = boot.run(boot.parse([*options, *sys.argv[1:], "--", "sh", "-c", "\n".join(script)]))
    if status:
        die(f"an example of docs/tracing.md does not work (status {status})")
    for name, patterns in EXPECTED.items():
        output = (BUILD / f"vm/tracing/files/{name}.txt").read_text()
        for pattern in patterns:
            if not re.search(pattern, output):
                sys.stdout.write(output[-3000:])
                die(f"{name} has printed no line like {pattern}")
        say(f"{name}: as docs/tracing.md says")


if __name__ == "__main__":
    main()
