# SPDX-License-Identifier: GPL-2.0
"""Remove fixes from the module, one at a time, and check that the selftests notice.

The mutations are in selftests/mutations/table.toml. First the tests that are named there must pass on the unmodified module. Then
each mutated module is built in build/mutations/NAME and booted, and its test is run and must fail. A machine that hangs or crashes,
or a card that finds a violation, counts as a failure. A boot may take twice the time that the test took before, and counts as hung
if it does not end in the longer time of a second boot either. The last line is `N passed, N failed`; passed means caught. The results are
kept in build/mutations/results.json, and --table prints them, with all mutations, and writes the table to build/reports/mutations.md.
"""

import argparse
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib

from fermatavm import boot
from fermatavm.common import BUILD, JOBS, TOP, Timer, die
from fermatavm.kernel import kernel_named

TABLE = TOP / "selftests/mutations/table.toml"
OUT = BUILD / "mutations"
RESULTS = OUT / "results.json"
# Factor by which a second boot may take longer.
LONGER = 3
PARTS = ("Kbuild", "include", "rust", "uapi")
RESULT = re.compile(r"^(ok|not ok) \d+ (\S+)(.*)$")
BEGIN = re.compile(r"^# uptime ([\d.]+) (\S+)$")
WHERE = re.compile(r"^#\s+(\S+\.c:\d+:.*)$")
HOW = {
    boot.CARD_FAILED: "the card found a violation",
    boot.KERNEL_COMPLAINED: "the kernel complained",
    boot.ENDED_EARLY: "the machine ended early",
    boot.TIMED_OUT: "the machine hung",
}


class Mutation:
    """One entry of the table."""

    def __init__(self, entry):
        self.name, self.point, self.breaks, self.edits = entry["name"], entry["point"], entry["breaks"], entry["edit"]
        self.program, self.test = entry["test"].split(".")
        self.kernel, self.card = entry.get("kernel", "7.2"), entry.get("card", "irq")
        self.iommu, self.params, self.boot = entry.get("iommu", "none"), entry.get("params", ""), entry.get("boot", "")
        self.env, self.defect = entry.get("env", ""), entry.get("defect")
        self.out, self.failure, self.ko = OUT / self.name, None, None

    @property
    def configuration(self):
        return self.kernel, self.card, self.iommu, self.params, self.boot, self.env

    def mutated(self):
        """Return the texts of the files that change. Fail if a text is not as in the table."""
        texts = {}
        for edit in self.edits:
            file = edit["file"]
            if not (TOP / file).exists():
                raise ValueError(f"{self.name}: there is no {file}; the table is stale")
            text = texts.get(file) or (TOP / file).read_text()
            count = text.count(edit["old"])
            if count != 1:
                raise ValueError(f"{self.name}: the text to replace is {count} times in {file}; the table is stale")
            texts[file] = text.replace(edit["old"], edit["new"])
        source = (TOP / f"selftests/{self.program}.c").read_text()
        if not re.search(rf"\b{self.test}\)", source):
            raise ValueError(f"{self.name}: selftests/{self.program}.c has no test {self.test}")
        return texts

    def build(self):
        """Build the mutated module. Set `ko`, or `failure`."""
        try:
            texts = self.mutated()
        except ValueError as error:
            self.failure = str(error)
            return
        shutil.rmtree(self.out, ignore_errors=True)
        source = self.out / "source"
        source.mkdir(parents=True)
        for part in PARTS:
            path = TOP / part
            shutil.copytree(path, source / part) if path.is_dir() else shutil.copy2(path, source / part)
        for file, text in texts.items():
            (source / file).write_text(text)
        kernel = kernel_named(self.kernel).ensure()
        objects = self.out / "module"
        objects.mkdir()
        cmd = ["make", "-C", kernel.build, f"M={source}", f"MO={objects}", f"-j{JOBS}", "-s", "modules"]
        with open(self.out / "build.log", "wb") as log:
            done = subprocess.run([str(c) for c in cmd], stdout=log, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            self.failure = f"does not build: see build/mutations/{self.name}/build.log"
        else:
            self.ko = objects / "fermata.ko"

    def boot_until_begun(self, timeout):
        """Boot, and boot again if the test does not begin. Return the result of `run_tests`, and whether the test began."""
        for _ in range(2):
            status, log, console = run_tests(self.name, self.configuration, self.ko, [(self.program, self.test)], timeout)
            if any(line.startswith("#  RUN") for line in log):
                return status, log, console, True
        return status, log, console, False

    def run(self, timeout):
        """Return whether the test fails, and how."""
        status, log, console, begun = self.boot_until_begun(timeout)
        if begun and status == boot.TIMED_OUT and not any(line.startswith("not ok") for line in log):
            print(f"{self.name}: no end in {timeout} seconds; once more, with {LONGER * timeout}", flush=True)
            status, log, console, begun = self.boot_until_begun(LONGER * timeout)
        if not begun:
            return False, f"the test did not begin: see build/mutations/mutation-{self.name}.log"
        if "init: fermata.ko does not load" in console or any("no /dev/fermata0" in line for line in log):
            return False, "the module does not load, or takes no card"
        if not status:
            return False, "the test passes"
        wheres = [found.group(1) for line in log if (found := WHERE.match(line))]
        if status == boot.KERNEL_COMPLAINED:
            wheres = [line.strip() for line in console.splitlines() if boot.TROUBLE.search(line)] + wheres
        how = HOW.get(status, f"status {status}")
        return True, f"{wheres[0] if wheres else how}"


def run_tests(name, configuration, ko, tests, timeout):
    """Boot with `ko` (None: the unmodified module) and run tests. Return the status, the log's lines and the kernel's log."""
    kernel, card, iommu, params, more, env = configuration
    uptime = "read -r up _ </proc/uptime; echo \"# uptime $up"
    script = "; ".join(f'{uptime} {program}.{test}"; /selftests/{program} -t {test} || status=1' for program, test in tests)
    name = re.sub(r"[^\w.+-]+", "-", f"mutation-{name}")
    args = ["--kernel", kernel, "--card", f"profile={card}", "--iommu", iommu, "--params", params, "--name", name]
    args += ["--guest", "selftests", "--timeout", str(timeout), *(["--module", str(ko)] if ko else []), *more.split()]
    command = ["sh", "-c", f'status=0; {script}; {uptime} end"; exit $status']
    with open(OUT / f"{name}.log", "wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", "fermatavm.boot", *args, "--", "env", "FERMATA_REQUIRE_CARD=1", *env.split(), *command],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    console = BUILD / "vm" / name / "console"
    return (
        done.returncode,
        (OUT / f"{name}.log").read_text(errors="replace").splitlines(),
        console.read_text(errors="replace") if console.exists() else "",
    )


def seconds_of(log, whole):
    """Return how long a boot for each test alone takes, in seconds, if a boot for all tests took `whole`."""
    begins = [(float(found.group(1)), found.group(2)) for line in log if (found := BEGIN.match(line))]
    took = {test: end - begin for (begin, test), (end, _) in itertools.pairwise(begins)}
    return {test: whole - sum(took.values()) + seconds for test, seconds in took.items()}


def baseline(mutations):
    """Run the named tests of each configuration on the unmodified module. Return the tests that fail, and the seconds of each."""
    bad, seconds = [], {}
    groups = {}
    for mutation in mutations:
        groups.setdefault(mutation.configuration, set()).add((mutation.program, mutation.test))
    for configuration, tests in groups.items():
        name = "-".join(filter(None, ("none", *configuration)))
        print(f"the module as it is, {' '.join(filter(None, configuration))}: {len(tests)} tests", flush=True)
        begin = time.monotonic()
        status, log, _ = run_tests(name, configuration, None, sorted(tests), 60 + 60 * len(tests))
        seconds |= {(configuration, test): took for test, took in seconds_of(log, time.monotonic() - begin).items()}
        passed = {}
        for line in log:
            if result := RESULT.match(line):
                passed[result.group(2).rsplit(".", 1)[-1]] = result.group(1) == "ok" and "SKIP" not in result.group(3)
        missing = [f"{program}.{test}" for program, test in tests if not passed.get(test)]
        if not missing and status:
            missing = [f"{program}.{test}" for program, test in tests]
        for test in missing:
            print(f"    {test} does not pass (or is skipped), status {status}: see build/mutations/mutation-{name}.log", flush=True)
        bad += [(configuration, test) for test in missing]
    return bad, seconds


def last_results():
    """Return, by name, what the last run of each mutation in this checkout found."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def keep_result(mutation, caught, how):
    results = last_results()
    results[mutation.name] = {"caught": caught, "how": how, "date": time.strftime("%Y-%m-%d")}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def print_table(mutations):
    """Print the mutations with their last results as a table in Markdown, and write it to build/reports/mutations.md."""
    results = last_results()
    lines = ["| mutation | what is wrong then | for | selftest (card, IOMMU) | last run here |", "| --- | --- | --- | --- | --- |"]
    for mutation in mutations:
        what = f"defect {mutation.defect}" if mutation.defect else f"point {mutation.point}" if mutation.point else ""
        test = f"{mutation.program}.{mutation.test} ({mutation.card}, {mutation.iommu})"
        result = results.get(mutation.name)
        last = f"{'caught' if result['caught'] else 'NOT CAUGHT'}, {result['date']}" if result else "-"
        lines.append(f"| {mutation.name} | {mutation.breaks} | {what} | {test} | {last} |")
    text = "\n".join(lines) + "\n"
    (BUILD / "reports").mkdir(parents=True, exist_ok=True)
    (BUILD / "reports/mutations.md").write_text(text)
    print(text, end="")


def run_all(mutations, timeout):
    """Build the next mutation while one is booted. Return rows of the table."""
    rows = []
    bad, seconds = baseline(mutations)
    mutations[0].build()
    for number, mutation in enumerate(mutations):
        ahead = None
        if number + 1 < len(mutations):
            ahead = threading.Thread(target=mutations[number + 1].build)
            ahead.start()
        timer = Timer()
        test = f"{mutation.program}.{mutation.test}"
        if (mutation.configuration, test) in bad:
            caught, how = False, "the test does not pass without the mutation either"
        elif mutation.failure:
            caught, how = False, mutation.failure
        else:
            caught, how = mutation.run(max(timeout, math.ceil(2 * seconds.get((mutation.configuration, test), 0))))
        print(f"[{number + 1}/{len(mutations)}] {mutation.name}: {'caught' if caught else 'NOT CAUGHT'} ({timer}): {how}", flush=True)
        rows.append((mutation, caught, how))
        keep_result(mutation, caught, how)
        shutil.rmtree(mutation.out / "module", ignore_errors=True)
        if ahead:
            ahead.join()
    return rows


def main():
    parser = argparse.ArgumentParser(prog="selftests/mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="only these")
    parser.add_argument("--check", action="store_true", help="only see that every text still stands where the table says")
    parser.add_argument("--list", action="store_true", help="list them")
    parser.add_argument("--table", action="store_true", help="list them with their last results, and write build/reports/mutations.md")
    parser.add_argument("--timeout", default=90, type=int, metavar="SECONDS", help="least limit for a boot (default 90)")
    args = parser.parse_args()
    mutations = [Mutation(entry) for entry in tomllib.loads(TABLE.read_text())["mutation"]]
    names = [mutation.name for mutation in mutations]
    if len(set(names)) != len(names):
        die("selftests/mutations/table.toml: two mutations of one name")
    if args.name:
        if unknown := set(args.name) - set(names):
            die(f"no such mutation: {' '.join(sorted(unknown))}")
        mutations = [mutation for mutation in mutations if mutation.name in args.name]
    if args.list:
        for mutation in mutations:
            print(f"{mutation.name}: {mutation.breaks} ({mutation.program}.{mutation.test}, {mutation.card}, {mutation.iommu})")
        return
    if args.table:
        print_table(mutations)
        return
    stale = 0
    for mutation in mutations:
        try:
            mutation.mutated()
        except ValueError as error:
            print(error)
            stale += 1
    if args.check:
        print(f"{len(mutations) - stale} passed, {stale} failed")
        sys.exit(1 if stale else 0)
    OUT.mkdir(parents=True, exist_ok=True)
    rows = run_all(mutations, args.timeout)
    width = max(len(mutation.name) for mutation in mutations)
    print()
    for mutation, caught, how in rows:
        test = f"{mutation.program}.{mutation.test}"
        print(f"{mutation.name:{width}}  {mutation.point or '-':>2}  {'caught' if caught else 'NOT CAUGHT':10}  {test}: {how}")
    passed = sum(caught for _, caught, _ in rows)
    print(f"{passed} passed, {len(rows) - passed} failed", flush=True)
    sys.exit(0 if passed == len(rows) else 1)


if __name__ == "__main__":
    main()
