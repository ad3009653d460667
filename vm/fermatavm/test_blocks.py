# SPDX-License-Identifier: GPL-2.0
"""Tests of fermatavm.blocks: python3 -m unittest fermatavm.test_blocks"""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from . import blocks, common

GOOD = """# A page
Text, which goes on
    in a line that is indented.

- a point

  ```sh step=demo
  make demo
  ```
- another,
    which goes on

      indented by mistake, at line 13

```c file=first.c
int first;

    int indented;
```
~~~text
```
~~~
1. one
   ```sh needs="a cluster"
   kubectl get pods
   ```
"""
BAD = """```
no language
```
```perl
unknown language
```
```sh
no word
```
```sh later
unknown word
```
```sh step=none
unknown step
```
```c wrong
wrong word
```

    indented

Text.
```sh vm
no end
"""


class Blocks(unittest.TestCase):
    def setUp(self):
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(blocks, "TOP", self.top))
        self.page = self.top / "page.md"

    def complaints(self, text):
        self.page.write_text(text)
        return [complaint.split(": ", 1)[0].removeprefix("page.md:") for complaint in blocks.complaints(self.page, {"demo"})]

    def test_good_page(self):
        self.assertEqual(self.complaints(GOOD), ["13"])
        found = blocks.blocks_of(self.page)
        self.assertEqual([block.language for block in found], ["sh", "c", "text", "sh"])
        self.assertEqual(found[0].text, "make demo\n")
        self.assertEqual((found[1].file, found[1].text), ("first.c", "int first;\n\n    int indented;\n"))
        self.assertEqual(found[2].text, "```\n")

    def test_bad_page(self):
        self.assertEqual(self.complaints(BAD), ["1", "4", "7", "10", "13", "16", "23", "20"])

    def test_run_stops_at_the_first_failure(self):
        self.page.write_text("```sh host\nx=1\n```\n```sh host\necho $x\nfalse\n```\n```sh host\necho $x\n```\n")
        points, kept = common.Points(3), self.top / "kept"
        kept.mkdir()
        with mock.patch.object(blocks, "KEPT", kept), contextlib.redirect_stdout(io.StringIO()) as output:
            blocks.on_host(points, self.page, blocks.blocks_of(self.page))
        said = [line for line in output.getvalue().splitlines() if not line.startswith("#")]
        self.assertEqual(said, ["ok 1 page.md:1", "not ok 2 page.md:4", "not ok 3 page.md:8, which comes after page.md:4"])
        self.assertIn("# 1", output.getvalue())


if __name__ == "__main__":
    unittest.main()
