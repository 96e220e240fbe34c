"""Looks at a report in headless Chromium, through chromedriver and the WebDriver protocol.

usage: page.py look PAGE PICTURES SOURCE     its own script and no other, crash point by mouse and keyboard, files that differ, lines of the file
                                             SOURCE if that is not empty, two widths, light and dark
       page.py open PAGE SECONDS             how long a large report takes to open
"""

import base64
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

WAIT_S = 120


class Browser:
    def __init__(self, driver="chromedriver", browser=None):
        self.process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = None
        for line in self.process.stdout:
            if "started successfully on port" in line:
                self.port = int(line.rsplit(" ", 1)[1].strip(" .\n"))
                break
        if self.port is None:
            raise RuntimeError("chromedriver does not start")
        arguments = ["--headless=new", "--disable-gpu", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        options = {"args": arguments}
        if browser:
            options["binary"] = browser
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self.session = ""
        answer = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{answer['sessionId']}"

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{self.session}{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read()[:400]!r}") from error

    def go(self, page):
        self.ask("POST", "/url", {"url": pathlib.Path(page).resolve().as_uri()})

    def run(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, css):
        return next(iter(self.ask("POST", "/element", {"using": "css selector", "value": css}).values()))

    def keys(self, css, text):
        self.ask("POST", f"/element/{self.find(css)}/value", {"text": text})

    def click(self, css, right=0):
        """A press of the mouse in the middle of an element, or so many pixels to the right of it."""
        origin = {"element-6066-11e4-a52e-4f735466cecf": self.find(css)}
        actions = [
            {"type": "pointerMove", "duration": 0, "origin": origin, "x": right, "y": 0},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        self.ask("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}]})

    def width(self, width):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def scheme(self, scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [feature]}})

    def log(self, kind):
        return self.ask("POST", "/se/log", {"type": kind})

    def end(self):
        try:
            self.ask("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait()


def expect(truth, what):
    if not truth:
        raise SystemExit(f"page.py: {what}")


def look(page, pictures, source):
    browser = Browser()
    try:
        browser.go(page)
        said = browser.log("browser")
        expect(said == [], f"the console says {said}")
        asked = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
        asked = [m["params"]["request"]["url"] for m in asked if m["method"] == "Network.requestWillBeSent"]
        expect(len(asked) == 1 and asked[0].startswith("file:"), f"the page asks for {asked}")
        policy = browser.run("return document.querySelector('meta[http-equiv]').content")
        expect("default-src 'none'" in policy and "unsafe" not in policy, f"its policy is {policy}")
        # What the policy does not name does not run.
        browser.run("const s = document.createElement('script'); s.textContent = 'window.foreign = 1'; document.body.append(s)")
        expect(browser.run("return window.foreign") is None, "a foreign script runs")
        browser.log("browser")
        expect(browser.run("return document.images.length") == 0, "a name of a file has become an image")
        expect("onerror" in browser.run("return document.body.innerText"), "the name of the file is not shown")
        expect(not browser.run("return document.getElementById('timeline').hidden"), "the crash point is hidden")

        point = lambda: browser.run("return Number(document.getElementById('point').value)")
        told = lambda: browser.run("return document.getElementById('said').textContent")
        count = browser.run("return Number(document.getElementById('point').max)")
        browser.click("#lanes")
        expect(abs(point() - count / 2) <= 1, f"a click in the middle of {count} calls leads to {point()}")
        before, words = point(), told()
        browser.keys("#point", "\ue012")
        expect(point() == before - 1 and told() != words, f"the left arrow leads from {before} to {point()}")
        browser.keys("#point", "\ue011")
        expect(point() == 0 and "before the first call" in told(), f"Home leads to {point()}")
        browser.keys("#calls", "\ue015")
        expect(point() == 1, f"the list's down arrow leads to {point()}")
        browser.run("document.getElementById('calls').scrollTop = 0")
        browser.click('[data-position="3"]')
        expect(point() == 3, f"a click on the third call leads to {point()}")
        expect(browser.run("return document.querySelector('.row.last').dataset.position") == "3", "the call is not marked")
        chosen = browser.run("const s = document.getElementById('show'); s.value = '0'; s.dispatchEvent(new Event('change')); return document.querySelectorAll('.row.lost').length")
        expect(chosen > 0, "the finding shows no lost call")
        # Sections fold by keyboard.
        opened = browser.run("return document.querySelector('details').open")
        browser.keys("summary", "\ue007")
        expect(browser.run("return document.querySelector('details').open") != opened, "Enter does not fold a section")
        browser.run("document.querySelector('details').open = true")

        # What is lost, beside what was written: in the finding, and at each crash point.
        sides = "return Array.from(document.querySelectorAll('%s'), (e) => e.textContent)"
        gone = browser.run(sides % "details .sides td.lost")
        expect(any("new <b>content</b>" in text for text in gone), f"the finding does not show what is lost: {gone}")
        expect(any("new <b>content</b>" in text for text in browser.run(sides % "#files td.lost")), "nor does its crash point")
        browser.keys("#point", "\ue011")
        expect("No file differs" in browser.run("return document.getElementById('taken').textContent"), "before the first call a file differs")
        taken = set()
        for _ in range(int(count)):
            browser.keys("#point", "\ue014")
            taken.update(browser.run(sides % "#files caption"))
        expect("tmp" in taken and any("onerror" in name for name in taken), f"the crash points show {taken} alone")
        if source:
            shown = browser.run(sides % "details .source strong")
            expect(any("rename(" in line and "<i>before</i>" in line for line in shown), f"the finding shows the lines {shown}")
            browser.keys("#point", "\ue010")
            seen = set()
            for _ in range(int(count)):
                seen.update(browser.run(sides % "#source strong"))
                expect(all(source in text for text in browser.run(sides % "#source figcaption")), "another file than the source is shown")
                browser.keys("#point", "\ue012")
            expect(any("rename(" in line for line in seen), f"the crash points show the lines {seen}")
        browser.run("const s = document.getElementById('show'); s.value = '0'; s.dispatchEvent(new Event('change'))")

        for width, scheme in ((400, "light"), (1600, "light"), (400, "dark")):
            browser.width(width)
            browser.scheme(scheme)
            paper = browser.run("return getComputedStyle(document.documentElement).colorScheme")
            dark = browser.run("return getComputedStyle(document.documentElement).getPropertyValue('--ok').trim()") == "#6fd08c"
            expect("dark" in paper and dark == (scheme == "dark"), f"{scheme}: the page is {'dark' if dark else 'light'}")
            wide = browser.run("window.dispatchEvent(new Event('resize')); return document.documentElement.scrollWidth")
            expect(wide <= width, f"at {width} pixels the page is {wide} wide")
            picture = base64.b64decode(browser.ask("GET", "/screenshot"))
            path = os.path.join(pictures, f"report-{width}{'-dark' if dark else ''}.png")
            with open(path, "wb") as file:
                file.write(picture)
            print(f"{path}: {len(picture)} bytes")
        said = browser.log("browser")
        expect(said == [], f"the console says {said}")
        print("the report is as it should be")
    finally:
        browser.end()


def opened(page, seconds):
    browser = Browser()
    try:
        browser.go(page)
        said = browser.log("browser")
        expect(said == [], f"the console says {said}")
        count = browser.run("return Number(document.getElementById('point').max)")
        took = browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000
        began = time.monotonic()
        browser.click("#lanes")
        moved = time.monotonic() - began
        print(f"{count} calls open in {took:.2f} s; the crash point moves in {moved:.2f} s")
        expect(took <= float(seconds), f"{took:.2f} s are more than {seconds} s")
    finally:
        browser.end()


if __name__ == "__main__":
    {"look": look, "open": opened}[sys.argv[1]](*sys.argv[2:])
