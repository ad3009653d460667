#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What packaging/tests/metrics asks of the exporter and of Prometheus, in the machine."""

import argparse
import http.client
import json
import math
import re
import socket
import sys
import time
import urllib.parse
import urllib.request

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class UnixConnection(http.client.HTTPConnection):
    """A connection to a socket in the file system."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


def get(place, accept):
    """Return the text of the metrics at a socket, or at ADDRESS:PORT."""
    connection = UnixConnection(place) if place.startswith("/") else http.client.HTTPConnection(place)
    connection.request("GET", "/metrics", headers={"Accept": accept})
    response = connection.getresponse()
    text = response.read().decode()
    assert response.status == 200, text
    return text


def samples(text):
    """Return name, labels and value of each sample."""
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            yield name, dict(LABEL.findall(labels or "")), value


def value(place, name, *labels):
    """Print the value of the one sample that has these labels, times in nanoseconds."""
    wanted = dict(label.split("=", 1) for label in labels)
    found = [value for other, has, value in samples(get(place, OPEN_METRICS)) if other == name and wanted.items() <= has.items()]
    assert len(found) == 1, found
    if name.endswith(("_seconds_total", "_seconds_sum")):
        whole, _, part = found[0].partition(".")
        found = [int(whole + part.ljust(9, "0"))]
    print(found[0])


def documented(place, path):
    """Check that a document names each metric, as its samples are named."""
    with open(path) as file:
        text = file.read()
    types = [line.split()[2:] for line in get(place, "text/plain").splitlines() if line.startswith("# TYPE ")]
    missing = [name for name, _ in types if f"`{name}`" not in text]
    print(f"{len(types)} metrics, not documented: {missing}")
    assert len(types) > 20 and not missing


def ask(prometheus, call, **arguments):
    """Return the answer of Prometheus's HTTP API."""
    with urllib.request.urlopen(f"http://{prometheus}/api/v1/{call}?{urllib.parse.urlencode(arguments)}") as response:
        answer = json.load(response)
    assert answer["status"] == "success", answer
    return answer["data"]


def query(prometheus, text):
    """Print the value of the one series of a query."""
    [series] = ask(prometheus, "query", query=text)["result"]
    print(series["value"][1])


def dashboard(prometheus, path, output, seconds):
    """Run the queries of a dashboard over the last seconds, and write what they return."""
    with open(path) as file:
        panels = json.load(file)["panels"]
    now = int(time.time())
    answers = {}
    for panel in panels:
        for target in panel["targets"]:
            # The test has a minute, and not the hours of a dashboard.
            expression = target["expr"].replace("$__rate_interval", "5s").replace("[5m]", "[20s]").replace("$card", "fermata0")
            result = ask(prometheus, "query_range", query=expression, start=now - int(seconds), end=now, step=2)["result"]
            numbers = [float(number) for series in result for _, number in series["values"]]
            print(f"{panel['title']}: {expression}: {len(result)} series, {len(numbers)} values")
            assert numbers and any(map(math.isfinite, numbers)), "no data"
            answers[target["expr"]] = result
    with open(output, "w") as file:
        json.dump({"start": now - int(seconds), "answers": answers}, file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["get", "value", "documented", "query", "dashboard"])
    parser.add_argument("arguments", nargs="+")
    given = parser.parse_args()
    if given.action == "get":
        sys.stdout.write(get(*given.arguments))
    else:
        {"value": value, "documented": documented, "query": query, "dashboard": dashboard}[given.action](*given.arguments)
