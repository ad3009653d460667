# SPDX-License-Identifier: GPL-2.0
"""Tests of vm/check: python3 -m unittest fermatavm.test_check"""

import contextlib
import fcntl
import io
import os
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

from . import check, guest, rest, second, steps

# Fails the first time, and passes the second time.
ONCE = "if [ -e {0} ]; then echo 'ok 1 in time'; else touch {0}; echo 'not ok 1 in time'; exit 1; fi"


class Checks(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(second, "BUILD", self.folder))

    def run_table(self, table, ci=True, minutes=None):
        """Run the steps of a table; return what was printed, without the log of failures."""
        (self.folder / "vm").mkdir(exist_ok=True)
        (self.folder / "vm/table").write_text(table)
        with mock.patch.object(steps, "TOP", self.folder):
            chosen = steps.read_table("table")
            chosen.sort(key=lambda step: step.judges)
            args = types.SimpleNamespace(debug=False, rest=minutes)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                with mock.patch.dict(os.environ, {"CI": "true" if ci else ""}), self.assertRaises(SystemExit) as ended:
                    check.Run(chosen, self.folder, args).run()
        self.status = ended.exception.code
        return printed.getvalue()

    def flaky(self, name, mark="vm"):
        return f"tap {mark} | {name} | {name} | {ONCE.format(self.folder / f'{name}.seen')}\n"

    def test_a_missed_point_runs_again_in_ci(self):
        printed = self.run_table(self.flaky("late"))
        self.assertIn("late: failed, then passed", printed)
        self.assertTrue(printed.endswith("1 passed, 0 failed\n"))
        self.assertIn("for vm/second-runs: late ", printed.replace(f"{self.folder}/", ""))
        self.assertEqual(self.status, 0)
        self.assertIn("not ok 1", (self.folder / "late.first.log").read_text())
        self.assertIn("ok 1", (self.folder / "late.log").read_text())

    def test_nothing_runs_again_elsewhere(self):
        printed = self.run_table(self.flaky("late"), ci=False)
        self.assertTrue(printed.endswith("0 passed, 1 failed\n"))
        self.assertEqual(self.status, 1)

    def test_a_step_without_a_machine_does_not_run_again(self):
        self.assertIn("does not run again: it boots no machine", self.run_table(self.flaky("host", mark="5m")))

    def test_signs_of_a_mistake_are_final(self):
        signs = (
            "BUG: KASAN: use-after-free", "fermata: card 0 ended with status 1", "fermata: the kernel complained: see build/vm/x/console",
            "WARNING: possible circular locking dependency detected", "# the digest in the arena is wrong", "# 1 job was lost",
        )  # fmt: skip
        for number, sign in enumerate(signs):
            with self.subTest(sign):
                printed = self.run_table(self.flaky(f"sign{number}").replace("echo 'not ok", f"echo '{sign}'; echo 'not ok"))
                self.assertIn(f"sign{number} does not run again: its log has: {sign[:20]}", printed)
                self.assertEqual(self.status, 1)

    def test_the_reason_of_a_point_is_named(self):
        printed = self.run_table("tap | jobs | jobs | echo 1..1; echo not ok 1 a job; echo '# no job runs'\n")
        self.assertIn("a job (no job runs)", printed)

    def test_another_failure_is_final(self):
        printed = self.run_table("step vm | demo | the demo | exit 3\n")
        self.assertIn("does not run again: it failed neither by time nor by a missed point", printed)

    def test_the_time_limit_of_a_machine_runs_again(self):
        seen = self.folder / "seen"
        printed = self.run_table(f"step vm | boot | a boot | [ -e {seen} ] || {{ touch {seen}; exit 124; }}\n")
        self.assertIn("boot: failed, then passed", printed)

    def test_a_fourth_second_run_is_a_failure(self):
        printed = self.run_table("".join(self.flaky(f"flaky{number}") for number in range(4)))
        self.assertIn("flaky3 does not run again: 3 steps ran again already", printed)
        self.assertTrue(printed.endswith("3 passed, 1 failed\n"))

    def test_a_second_run_needs_as_much_time_as_the_first(self):
        table = self.flaky("late").replace("if [", "sleep 1.2; if [", 1) + "step 1m | other | another | true\n"
        with mock.patch.object(check, "SECOND_MINUTES", 0), mock.patch.object(rest, "GRACE", 0):
            printed = self.run_table(table, minutes=2 / 60)
        self.assertIn("late does not run again: no time is left for it", printed)

    def test_time_is_kept_for_a_second_run(self):
        budget = rest.Budget([], 10)
        budget.scale = 1
        step = mock.Mock(left_out=None, minutes=9, debug=False, judges=False)
        self.assertIsNone(budget.why_not(step))
        budget.reserve(120)
        self.assertEqual(budget.why_not(step), "no time is left for them")

    def test_judges_see_the_second_run(self):
        printed = self.run_table(f"step! | judge | judges | grep -q '^ok' {self.folder}/late.log\n" + self.flaky("late"))
        self.assertTrue(printed.endswith("2 passed, 0 failed\n"))

    def test_later_steps_use_the_programs_that_were_built(self):
        see = 'step | see | sees | test "$FERMATA_BUILT" = ' + str(check.TOP) + "\n"
        for built, passed in (("true", "2 passed, 0 failed"), ("false", "0 passed, 2 failed")):
            with self.subTest(built), mock.patch.dict(os.environ, {"FERMATA_BUILT": ""}):
                printed = self.run_table(f"step | {check.PROGRAMS} | programs | {built}\n{see}")
                self.assertTrue(printed.endswith(f"{passed}\n"), printed)

    def test_programs_that_were_built_are_not_built_again(self):
        for value, built in ((str(guest.TOP), 0), ("/elsewhere", 1)):
            with self.subTest(value), mock.patch.dict(os.environ, {"FERMATA_BUILT": value}), mock.patch.object(guest, "cargo") as cargo:
                self.assertTrue(guest.Profile(False).build())
                self.assertEqual(cargo.call_count, built)

    def test_the_table_builds_the_programs_before_the_machines(self):
        every = [step.name for step in steps.read_table("checks")]
        machines = [step.name for step in steps.read_table("checks") if step.boots]
        self.assertLess(every.index(check.PROGRAMS), min(every.index(name) for name in machines))

    def test_again_counts_failures(self):
        (self.folder / "vm").mkdir()
        (self.folder / "vm/table").write_text(self.flaky("late"))
        with mock.patch.object(steps, "TOP", self.folder), contextlib.redirect_stdout(io.StringIO()) as printed:
            [step] = steps.read_table("table")
            self.assertEqual(second.again(step, 3, self.folder), 1)
        self.assertTrue(printed.getvalue().endswith("late: failed 1 of 3 times\n"))


class Runs(unittest.TestCase):
    def test_runs_with_the_same_logs_wait_for_each_other(self):
        def try_lock(*_):
            with open(folder / ".check.lock") as lock, self.assertRaises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(check, "BUILD", folder))
        self.enterContext(mock.patch.object(check, "kernel_named"))
        self.enterContext(mock.patch.object(check.signal, "signal"))
        self.enterContext(mock.patch("sys.argv", ["vm/check", "words"]))
        with mock.patch.object(check, "run", side_effect=try_lock) as run:
            check.main()
        run.assert_called_once()


class Choice(unittest.TestCase):
    """Which steps run, of the tables as they are."""

    def all_steps(self, *tables):
        return [step for table in tables or steps.TABLES for step in steps.read_table(table)]

    def test_names_are_unique(self):
        names = [step.name for step in self.all_steps()]
        self.assertEqual(len(set(names)), len(names))
        self.assertTrue(all(name == steps.word(name) for name in names))

    def test_a_record_names_a_step(self):
        lines = [line.split() for line in second.RECORD.read_text().splitlines() if not line.startswith("#")]
        names = {step.name for step in self.all_steps()}
        for line in lines:
            self.assertIn(line[0], names)
            self.assertRegex(line[1], r"\d{4}-\d\d-\d\d")

    def test_a_name_chooses_one_step(self):
        for step in self.all_steps("checks"):
            self.assertEqual(steps.chosen(self.all_steps("checks"), [step.name])[0].name, step.name)

    def test_a_pattern_of_most_steps_is_refused(self):
        for pattern in ("the", "*", "nothing like it"):
            with self.assertRaises(SystemExit):
                steps.chosen(self.all_steps("checks"), [pattern])

    def test_parts_are_all_steps_once(self):
        every = self.all_steps()
        parts = steps.longest_first(every, 4)
        self.assertEqual(sorted(step.name for part in parts for step in part), sorted(step.name for step in every))
        minutes = [sum(step.minutes for step in part) for part in parts]
        self.assertLess(max(minutes), 1.2 * min(minutes))

    def ordered(self, *changed):
        with mock.patch.object(rest, "kernel_named", return_value=mock.Mock(ready=lambda: False)):
            return rest.ordered(self.all_steps("checks-debug", "checks-all"), changed)

    def test_a_changed_module_meets_the_debug_kernel_first(self):
        order = self.ordered("rust/card/irq.rs", "docs/testing.md")
        self.assertEqual(order[0].name, "debug-kernel")
        self.assertTrue(order[1].debug and order[1].tap and order[1].minutes <= rest.DEBUG_FIRST_MINUTES)

    def test_only_what_a_change_can_break_runs(self):
        order = self.ordered("packaging/slurm/slurm.conf")
        ran = [step.name for step in order if not step.left_out and not step.judges]
        self.assertIn("slurm", ran)
        self.assertNotIn("model", ran)
        self.assertNotIn("debug-kernel", ran)


if __name__ == "__main__":
    unittest.main()
