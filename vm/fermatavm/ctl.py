# SPDX-License-Identifier: GPL-2.0
"""Test fermatactl and the examples in a machine with tenants on a card.

tools/fermatactl/tests/guest.sh runs the commands; each of its points is a TAP point. This program judges the files that the script
leaves: it recomputes what the engines have computed, parses JSON, and runs mandoc on the manual pages.
"""

import hashlib
import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree

from .common import BUILD, TOP, Points

NAME = "ctl"
SCRIPT = TOP / "tools/fermatactl/tests/guest.sh"
SLOTS = "counter_up+membench+sha256+blockmix+queue+riscv+linkedlist"
OPTIONS = ["--name", NAME, "--timeout", "900", "--iommu", "intel", "--no-load", "--card", f"profile=irq,slots={SLOTS},2.speed=20"]
# Harmless complaints of mandoc about the output of clap_mangen: spaces at ends of lines, breaks beside paragraphs, long lines.
LINT = ("whitespace at end of input line", "skipping paragraph macro", "longer than 80 bytes")
MASK = (1 << 64) - 1


def rotate(word, bits):
    return (word << bits | word >> 64 - bits) & MASK


def splitmix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def words(data):
    data += bytes(-len(data) % 8)
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


def crc32c(data):
    crc = MASK >> 32
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ MASK >> 32


def walk(data, seed):
    for word in words(data):
        seed = rotate(seed, 1) ^ word
    return seed


def update(data, seed):
    """Return the result of membench for updates of each line, or of some lines, in random order."""
    data += bytes(-len(data) % 64)
    memory, checksum = words(data), 0
    lines = len(memory) // 8
    for access in range(lines):
        line = splitmix(seed + access & MASK) % lines
        for index in range(line * 8, line * 8 + 8):
            checksum = rotate(checksum, 5) ^ memory[index]
            memory[index] ^= splitmix(seed ^ index)
    return checksum, b"".join(word.to_bytes(8, "little") for word in memory)


def mix(data, digest, block=4096):
    """Return data as blockmix transforms it, and the digest of the last block."""
    memory = words(data + bytes(-len(data) % 64))
    for begin in range(0, len(memory), block // 8):
        before = digest
        for index in range(begin, min(begin + block // 8, len(memory))):
            memory[index] ^= splitmix(before + index - begin & MASK)
            digest = rotate(digest, 5) ^ memory[index]
    return digest, b"".join(word.to_bytes(8, "little") for word in memory)


class GuestFiles:
    """The files that the guest left."""

    def __init__(self, folder):
        self.folder = folder

    def data(self, name):
        return (self.folder / name).read_bytes()

    def values(self, name):
        """Return the JSON values of a file, one a line."""
        return [json.loads(line) for line in self.data(f"{name}.json").splitlines()]

    def result(self, name):
        [answer] = self.values(name)
        return answer["result"]


def list_is_whole(files):
    [answer] = files.values("list")
    [card] = answer["cards"]
    assert card["device"] == "/dev/fermata0" and "window" in card["features"], card
    assert [slot["engine"] for slot in card["slots"]] == SLOTS.split("+"), card["slots"]
    assert len(card["contexts"]) == 2, card["contexts"]
    for context in card["contexts"]:
        assert context["engine"] == "counter_up" and context["slots"] == [0], context
        assert context["command"].startswith("fermatactl run counter_up") and context["timeslice_ns"] == 1_000_000, context
    [whole] = files.values("card")
    assert whole.keys() == card.keys()
    [context] = files.values("context")
    assert context.keys() == card["contexts"][0].keys()


def reasons_are_told(files):
    [overview], [groups] = files.values("overview"), files.values("groups")
    [card] = overview["cards"]
    because = {context["waits"]: context["waits_because"] for context in card["contexts"]}
    assert because["group-cap"] == "cap 1 % of group /ctl is used up", because
    assert because["disabled"].startswith("disabled: `fermatactl enable 0 "), because
    capped = [context for context in card["contexts"] if context["group_path"] == "/ctl"]
    assert capped and all(context["group"] == context["waits_group"] for context in capped if context["waits"] == "group-cap"), capped
    by_path = {group["group_path"]: group for group in groups["groups"]}
    assert by_path.keys() >= {"user:0", "/ctl"}, groups
    group = by_path["/ctl"]
    assert group["registered"] and (group["weight"], group["cap"], group["contexts"]) == (300, 1, 1), group
    assert by_path["user:0"]["registered"] is False and by_path["user:0"]["run_percent"] > group["run_percent"] >= 0, groups


def overviews_fit(files):
    shown = files.data("overview-screen").decode()
    lines = shown.splitlines()
    assert len(lines) <= 24 and all(len(line) <= 80 for line in lines), shown
    for text in ("/dev/fermata0: policy fair", "cap 1 % of group /ctl is used up", "disabled: `fermatactl enable", "--help"):
        assert text in shown, (text, shown)


def cards_are_specified(files):
    [answer] = files.values("cdi")
    assert files.values("cdi-file") == [answer]
    assert (answer["cdiVersion"], answer["kind"]) == ("0.7.0", "fermata.dev/card"), answer
    number, address, every = answer["devices"]
    assert (number["name"], every["name"]) == ("0", "all") and re.fullmatch(r"0000:\w\w:\w\w\.0", address["name"]), answer
    assert number["containerEdits"] == address["containerEdits"] == every["containerEdits"], answer
    [node] = number["containerEdits"]["deviceNodes"]
    assert (node["path"], node["type"], node["permissions"]) == ("/dev/fermata0", "c", "rw"), node


def dumps_are_explained(files):
    [answer] = files.values("dump")
    assert answer["reason"] == "preempt-timeout" and answer["complete"] and not answer["deleted"], answer
    assert "was told to stop" in answer["happened"] and "ETIME" in answer["done"] and "preempt-timeout=" in answer["advice"], answer
    assert answer["sections"]["slot 0"] and ["TRANSACTION_CTL[0]", "0x6"] in [line[1].split() for line in answer["sections"]["writes"]], answer
    text = files.data("dump-text").decode()
    for part in (answer["happened"], answer["done"], answer["advice"], "PAUSE", "resetting"):
        assert part in text, (part, text)


def errors_have_advice(files):
    [error], [container] = files.values("error"), files.values("container")
    assert "there is no context" in error["error"] and "there are" in error["advice"], error
    assert "no node" in container["error"] and "--device" in container["advice"], container
    wrong = files.values("wrong")
    assert len(wrong) == 2 and all(error["error"] and error["advice"] for error in wrong), wrong


def errors_say_what_was_done(files):
    [refused], [half] = files.values("refused"), files.values("half")
    assert refused["done"] == [] and len(refused["not_done"]) == 2, refused
    assert half["done"] == ["weight=100"] and half["not_done"] == ["slots=1", "priority=25"], half


def answers_say_what_was_done(files):
    [hold], [done] = files.values("hold"), files.values("set")
    assert hold["done"] == "held" and len(hold["contexts"]) == 1, hold
    assert done["set"] == ["weight=100"], done
    [group] = files.values("group")
    assert group["registered"] and (group["weight"], group["cap"], group["max_bytes"]) == (300, 150, 64 << 20), group
    [hint] = files.values("hint")
    assert hint["ahead_ns"] is None, hint


def top_has_intervals(files):
    first, second = files.values("top")
    for frame in (first, second):
        [card] = frame["cards"]
        busy = card["slots"][0]["busy_percent"]
        runs = sum(context["run_percent"] for context in card["contexts"])
        assert 0 < busy <= 100 and 0 < runs <= 200, frame
        assert frame["interval_ns"] > 0, frame


def statistics_add_up(files):
    [card], [context] = files.values("stats"), files.values("stats-context")
    gap, wait = card["slots"][0]["histograms"]["gap"], context["histograms"]["wait"]
    for spread in (gap, wait):
        assert 0 < spread["count"] == sum(bucket["count"] for bucket in spread["buckets"]), spread
        times = [spread[name] for name in ("min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns")]
        assert times == sorted(times), spread
    # Each slice ends a wait. The counters are read before the histograms, while the job runs.
    assert wait["count"] >= context["slices"] > 0, context


def traces_are_whole(files):
    [answer] = files.values("trace")
    assert answer["events"] > 20 and answer["turns"] > 3 and answer["contexts"] == 2 and answer["lost"] == answer["unread"] == 0, answer
    assert len(files.data("trace.txt").splitlines()) >= answer["events"]
    assert files.data("trace.svg").startswith(b"<svg"), "no picture"
    events = json.loads(files.data("trace-events.json"))["traceEvents"]
    runs = [event for event in events if event["ph"] == "X" and event["cat"] == "run"]
    assert len(runs) > 3 and all(event["dur"] >= 0 for event in runs), events[:5]


def forged_events_are_none(files):
    """The commands of four tenants look like events. The one that is an event without a card makes lines that cannot be read."""
    [answer] = files.values("forged")
    assert answer["events"] > 100 and answer["contexts"] >= 4 and answer["unread"] > 0, answer
    events = json.loads(files.data("forged-events.json"))["traceEvents"]
    names = {event["name"] for event in events}
    for command in (": fermata_x", "x\\n#", "1.0: fermata_:", "a\\x1b[31m<b>"):
        assert any(re.fullmatch(rf"[A-Z] {re.escape(command)} \d+ run", name) for name in names), (command, names)
    picture = files.data("forged.svg").decode()
    assert xml.etree.ElementTree.fromstring(picture).tag.endswith("svg")
    text = files.data("forged.txt").decode()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", picture + text), "control characters"
    lines = [line for line in text.splitlines() if not re.search(r": fermata_\w+: card=|^CPU:\d+ \[LOST", line)]
    assert "x\\n#-" in text and not lines, lines


def screens_are_whole(files):
    shown = files.data("screen").decode().splitlines()
    assert len(shown) >= 3 * 15 and all(len(line) <= 80 for line in shown), shown
    titles = [line.split() for line in shown if line.split()[:1] == ["CTX"]]
    assert titles and all(title[-2:] == ["PID", "COMMAND"] for title in titles), shown


def table_of(shown, first):
    """Return a table of `top`: the words of each row by the row's first word and the column's title. A shortened word ends with an
    ellipsis."""
    lines = [line.split() for line in shown]
    [begin] = [number for number, words in enumerate(lines) if words[:1] == [first]]
    rows = itertools.takewhile(lambda words: words and words[0].isdigit(), lines[begin + 1 :])
    return {words[0]: dict(zip(lines[begin], words, strict=False)) for words in rows}


IDLE = re.compile(r"[\d.]+(ns|us|ms|s)|\d+m\d\ds|\d+h\d\dm")


def narrow_screens_have_whole_numbers(files):
    def shown(width):
        return files.data(f"screen-{width}").decode().splitlines()

    for first, rows in (("SLOT", 7), ("CTX", 2)):
        wide, fewest = table_of(shown(200), first), 20
        assert len(wide) == rows, wide
        for width in (80, 70, 69, 60, 40):
            table = table_of(shown(width), first)
            assert table.keys() == wide.keys(), (width, table)
            for number, row in table.items():
                for title, word in row.items():
                    # The one figure that changes while both are held.
                    if title == "IDLE":
                        assert IDLE.fullmatch(word), word
                        continue
                    whole = wide[number][title]
                    assert word == whole or word.endswith("…") and whole.startswith(word[:-1]), (width, title, word, whole)
            columns = max(map(len, table.values()))
            assert columns <= fewest, (width, table)
            fewest = columns
        assert first != "CTX" or all(IDLE.fullmatch(row["IDLE"]) for row in wide.values()), wide
        assert fewest < max(map(len, wide.values())), wide
    assert shown(40)[0].rstrip() == "/dev/fermata0  policy fair, boost 1s", shown(40)[0]


def lists_and_lines(files):
    data = files.data("list-data")
    assert files.result("list-run") == {"count": len(data) // 8, "checksum": hex(walk(data, 5))}
    checksum, memory = update(data, 5)
    assert files.result("membench") == {"count": len(data) // 64, "checksum": hex(checksum)}
    assert files.data("membench") == memory
    digest, memory = mix(data, 5)
    assert files.result("blockmix") == {"count": len(data) // 4096, "checksum": hex(digest)}
    assert files.data("blockmix") == memory
    assert files.result("counter") == {"count": 21, "bits": (3 + 21) % 16}


def queues(files):
    data = files.data("list-data")
    assert files.result("queue-sha256") == {"sha256": hashlib.sha256(data).hexdigest()}
    assert files.result("queue-crc32c") == {"crc32c": hex(crc32c(data))}
    assert files.result("queue-copy") == files.result("queue-fill") == {"bytes": len(data)}


def registers(files):
    values = b"".join(int(register["value"], 16).to_bytes(8, "little") for register in files.result("raw")["registers"])
    assert values == hashlib.sha256(files.data("list-data")[:4096]).digest(), values


def pages(files):
    folder = files.folder / "man"
    done = subprocess.run(["mandoc", "-T", "lint", *folder.glob("*.1")], capture_output=True, text=True)
    wrong = [line for line in done.stdout.splitlines() if not any(known in line for known in LINT)]
    assert not wrong, "\n".join(wrong)
    assert {"fermatactl.1", "fermatactl-run.1", "fermatactl-top.1"} <= {page.name for page in folder.iterdir()}


def page_has_the_example(_files):
    page, example = (TOP / "docs/user-interface.md").read_text(), (TOP / "examples/hash.c").read_text()
    assert f"```c\n{example}```\n" in page, "the program of docs/user-interface.md is not examples/hash.c"


JUDGED = {
    "list and info have all there is": list_is_whole,
    "why contexts wait, and the groups, as JSON": reasons_are_told,
    "the overview fits on a screen of 80x24": overviews_fit,
    "the specification for container runtimes has the card by both names": cards_are_specified,
    "an error as JSON has advice": errors_have_advice,
    "a dump, explained, as text and as JSON": dumps_are_explained,
    "an error of several targets says which were done": errors_say_what_was_done,
    "control and set as JSON": answers_say_what_was_done,
    "top as JSON": top_has_intervals,
    "stats: histograms add up": statistics_add_up,
    "trace: events, turns and both drawings": traces_are_whole,
    "trace: names of tenants forge nothing": forged_events_are_none,
    "top on a terminal has all of its columns": screens_are_whole,
    "top on a narrow terminal has fewer columns, and whole numbers": narrow_screens_have_whole_numbers,
    "lists, lines, blocks and counts are what they should be": lists_and_lines,
    "so is what queues make": queues,
    "so are registers of an engine by its UUID": registers,
    "mandoc has nothing against the manual pages": pages,
    "docs/user-interface.md begins with examples/hash.c": page_has_the_example,
}


def main():
    command = [sys.executable, "-m", "fermatavm.boot", *OPTIONS, "--add", f"{SCRIPT}:ctl.sh", *sys.argv[1:], "--", "sh", "/ctl.sh"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=TOP)
    points = Points()
    for line in done.stdout.splitlines():
        verdict, dash, what = line.partition(" - ")
        if dash and verdict in ("ok", "not ok"):
            points.point(verdict == "ok", what)
        else:
            print(line)
    points.judge(JUDGED, lambda: GuestFiles(BUILD / "vm" / NAME / "files"))
    points.point(done.returncode == 0, "the machine, the card and the kernel are content")
    points.end()


if __name__ == "__main__":
    main()
