"""A real browser without a window, told what to do over a pair of pipes (the DevTools protocol)."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HOW_TO_GET_ONE = "needs `chromium` on the PATH (apt-get install chromium)"
_START_S = 120.0
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
#: What a key does besides its name: Tab moves, Enter presses the button that has the focus.
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, "")}

#: A function of a field's JSON pointer and a text: writes it into that field of a form, as a person does.
WRITE = """((pointer, text) => {
  const field = document.querySelector(`[data-pointer="${pointer}"]`).querySelector('input, select');
  field.value = text;
  for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, { bubbles: true }));
})"""


def find_chromium() -> str | None:
    return shutil.which("chromium")


class _Browser:
    """A process with an empty profile, and the pipes to it."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # Chromium reads descriptor 3 and writes 4; a shell puts them there.
        shell = f'exec "$@" 3<&{commands} 4>&{answers}'
        flags = [*_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "--window-size=1200,900"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, "bash", program, *flags, "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number, self._rest = 0, b""
        #: By session, what the console of its page has shown as an error.
        self.complaints: dict[str, list[str]] = {}

    def close(self) -> None:
        os.close(self._commands)  # at which it ends
        os.close(self._answers)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)

    def call(self, session: str, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _note(self, event: dict[str, Any]) -> None:
        about, complaints = event.get("params", {}), self.complaints.get(event.get("sessionId", ""), [])
        if event.get("method") == "Runtime.exceptionThrown":
            complaints.append(about["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif event.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            complaints.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], _START_S)
            if not ready or not (piece := os.read(self._answers, 2**16)):
                raise AssertionError(f"{self._process.args} does not answer; start it by hand to see why")
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


class Tab:
    """A page in a browser of its own, or beside others. A context manager."""

    def __init__(self, program: str, profile: Path) -> None:
        self._attach(_Browser(program, profile))

    def _attach(self, browser: _Browser) -> None:
        self._browser, self._session = browser, ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.complaints = browser.complaints.setdefault(self._session, [])
        for domain in ("Log", "Runtime"):
            self._call(f"{domain}.enable")

    def beside(self) -> "Tab":
        """Return another tab of the same browser."""
        made = object.__new__(Tab)
        made._attach(self._browser)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()

    def close(self) -> None:
        """Close this tab alone."""
        self._call("Page.close")

    def open(self, url: str) -> None:
        """Go to `url`; `wait_for` says when it is there."""
        self.complaints.clear()
        self._call("Page.bringToFront")  # what is behind is not drawn
        self._call("Page.navigate", url=url)

    def before_pages(self, script: str) -> None:
        """Run `script` before those of every page that is opened from now on."""
        self._call("Page.enable")
        self._call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def value_of(self, expression: str) -> Any:
        """Return what a JavaScript expression is, as JSON has it."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str, *, timeout_s: float = 60.0) -> Any:
        """Return the expression's value once it is true; fails with the page's text after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while not (value := self.value_of(f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()")):
            if time.monotonic() > end:
                raise AssertionError(
                    f"not within {timeout_s:g} s: {expression}; {self.value_of('document.body.innerText')}"
                )
            time.sleep(0.05)
        return value

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a person without a mouse."""
        for key in keys:
            code, text = _KEYS[key]
            about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
            self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def show(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Look at the page in a window of this size, in a light or a dark theme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Write what is seen to a PNG file."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(self._session, method, **parameters)
