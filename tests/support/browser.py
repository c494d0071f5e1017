"""A headless Chromium that tests open pages in, spoken to in its DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
_SECS = 60.0


def chromium() -> str | None:
    """The program, if this machine has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


# Texts of the page that one sees with less contrast than 4.5:1 to what is behind them (WCAG 2.2, 1.4.3), with it.
LOW_CONTRASTS = """(() => {
    const parse = (text) => {
        const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
        return text.startsWith("color(srgb") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((part, k) => a * part + (1 - a) * below[k]);
    const behind = (element) => {
        if (element === null) return [255, 255, 255];
        const color = parse(getComputedStyle(element).backgroundColor);
        return color[3] === 1 ? color.slice(0, 3) : over(color, behind(element.parentElement));
    };
    const luminance = (color) => color.reduce((sum, part, k) => {
        const c = part / 255;
        return sum + [0.2126, 0.7152, 0.0722][k] * (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    }, 0);
    const low = {}, walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
        if (!text || !element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const style = getComputedStyle(element), back = behind(element);
        const color = parse(element instanceof SVGElement ? style.fill : style.color);
        const [light, dark] = [over(color, back), back].map(luminance).sort((a, b) => b - a);
        const ratio = (light + 0.05) / (dark + 0.05);
        if (ratio < 4.5) low[text.slice(0, 40)] = ratio.toFixed(2);
    }
    return low;
})()"""


class Browser:
    """One page. `with Browser(folder) as browser: browser.open(url); browser.value("document.title")`.

    Attributes:
      complaints: What the page wrote into its console as an error or a warning, exceptions, and refused requests.
      requests: Addresses that it asked for.
    """

    def __init__(self, profile: Path) -> None:
        program = chromium()
        assert program is not None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number, self._unread = 0, b""
        self._session: str | None = None
        ours_in, theirs_out = os.pipe()
        theirs_in, self._out = os.pipe()
        self._in = ours_in
        # It reads commands from descriptor 3 and answers on 4.
        command = [program, "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        command += ["--window-size=1360,1000", "--mute-audio", "about:blank"]
        shell = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command], pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self._session = None
            self._call("Browser.close")
        try:
            self._process.wait(5.0)  # Its own processes end with it.
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_SECS)
        os.close(self._in)
        os.close(self._out)

    def open(self, url: str, ready: str) -> None:
        """Loads a page, and waits until the expression `ready` is true."""
        self._call("Page.navigate", url=url)
        self.wait(ready)

    def look(self, width: int, scheme: str) -> None:
        """As on a screen of so many pixels, in a `light` or `dark` scheme."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def wait(self, expression: str) -> None:
        """Until it is true."""
        deadline = time.monotonic() + _SECS
        while not self.value(expression):
            assert time.monotonic() < deadline, f"{expression} is not true; {self.complaints}"
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is on the page, as JSON has it."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """Of the whole page, as a PNG."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self._call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _SECS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([arg.get("value", arg.get("description")) for arg in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"][:200])
