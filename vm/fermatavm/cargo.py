# SPDX-License-Identifier: GPL-2.0
"""python3 -m fermatavm.cargo WHAT run|bench ARGUMENT...: build by cargo, and say WHAT is built if the build takes long; then run it."""

import os
import sys

from .common import TOP, run, working


def main():
    what, verb, *arguments = sys.argv[1:]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    build = ["cargo", "build", *options] if verb == "run" else ["cargo", verb, "--no-run", *options]
    with working(f"building {what}", after=3, counter=False):
        status = run(build, check=False, cwd=TOP).returncode
    if status:
        sys.exit(status)
    os.environ["CARGO_TERM_QUIET"] = "true"
    os.execvp("cargo", ["cargo", verb, *arguments])


if __name__ == "__main__":
    main()
