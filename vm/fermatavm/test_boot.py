# SPDX-License-Identifier: GPL-2.0
"""Tests of vm/boot: python3 -m unittest fermatavm.test_boot"""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from . import boot, guest


class Boots(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(boot, "BUILD", self.folder))
        locks = self.enterContext(mock.patch.object(boot, "LOCKS", {}))
        self.addCleanup(lambda: [lock.close() for lock in locks.values()])
        self.enterContext(mock.patch.object(boot, "kernel_named"))
        self.enterContext(mock.patch.object(boot.module, "build"))

    def module_of(self, *arguments):
        """Return the name of the module that a boot makes for its machine."""
        return boot.prepare(boot.parse(["--guest", "none", *arguments, "--", "true"]))[1].relative_to(self.folder / "vm").name

    def test_boots_without_a_name_share_no_module(self):
        self.assertEqual([self.module_of(), self.module_of()], ["boot.ko", "boot.1.ko"])

    def test_a_name_is_locked_before_its_module_is_built(self):
        self.assertEqual(self.module_of("--name", "demo"), "demo.ko")
        with open(self.folder / "vm/.demo.lock") as lock, self.assertRaises(BlockingIOError):
            boot.fcntl.flock(lock, boot.fcntl.LOCK_EX | boot.fcntl.LOCK_NB)
        # A process that prepares a machine may prepare and run the same machine again.
        self.assertEqual(self.module_of("--name", "demo"), "demo.ko")
        self.assertEqual(boot.out_folder("demo"), self.folder / "vm/demo")

    def test_the_retired_name_of_a_profile(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            card = boot.Card(0, "profile=fermata", self.folder, self.folder, guest.TESTED)
        self.assertEqual(card.cmd[card.cmd.index("--profile") + 1], "irq")
        self.assertEqual(said.getvalue(), "fermata: --card: the profile fermata is now called irq\n")

    def test_a_library_in_place_of_the_emulated_card(self):
        card = boot.Card(0, "profile=base,foreign=chip.so,argument=a=1+b", self.folder, self.folder, guest.TESTED)
        self.assertEqual(card.cmd[0], guest.TESTED.foreign_card)
        self.assertEqual(card.cmd[-4:], ["--foreign", "chip.so", "--argument", "a=1,b"])
        self.assertNotIn("--slots", card.cmd)


if __name__ == "__main__":
    unittest.main()
