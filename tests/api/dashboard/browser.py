"""A headless browser: Playwright drives the machine's own Chromium."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

HOW_TO_GET_ONE = "needs `chromium` on the PATH (apt-get install chromium)"
_START_MS = 120_000

#: A function of a field's JSON pointer and a text: writes it into that field of a form, as a person does.
WRITE = """((pointer, text) => {
  const field = document.querySelector(`[data-pointer="${pointer}"]`).querySelector('input, select');
  field.value = text;
  for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, { bubbles: true }));
})"""


def find_chromium() -> str | None:
    return shutil.which("chromium")


@contextmanager
def opened(program: str) -> Iterator["Tab"]:
    """Give a tab of a browser with an empty profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=_START_MS)
        yield Tab(browser.new_context(viewport={"width": 1200, "height": 900}))
        browser.close()


class Tab:
    """A page, alone or beside others of the same browser."""

    def __init__(self, context: "BrowserContext") -> None:
        self._context = context
        self.page: Page = context.new_page()
        #: What the console has shown as an error.
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} {message.location.get('url', '')}")

    def beside(self) -> "Tab":
        """Return another tab of the same browser."""
        return Tab(self._context)

    def close(self) -> None:
        """Close this tab alone."""
        self.page.close()

    def open(self, url: str) -> None:
        """Go to `url`; `wait_for` says when it is there."""
        self.complaints.clear()
        self.page.bring_to_front()  # what is behind is not drawn
        self.page.goto(url, wait_until="commit")

    def before_pages(self, script: str) -> None:
        """Run `script` before those of every page that is opened from now on."""
        self.page.add_init_script(script)

    def value_of(self, expression: str) -> Any:
        """Return what a JavaScript expression is, as JSON has it."""
        # Playwright calls what is a function: an expression that is none stays what it is.
        return self.page.evaluate(f"async () => ({expression})")

    def run(self, script: str) -> None:
        """Run a script of statements, whatever the page's policy says of scripts."""
        self.page.evaluate(f"() => {{ {script} }}")

    def wait_for(self, expression: str, *, timeout_s: float = 60.0) -> Any:
        """Return the expression's value once it is true; fails with the page's text after `timeout_s`."""
        # Asked for from here: Playwright's own waiting evaluates text, which the page's policy forbids.
        end = time.monotonic() + timeout_s
        while not (value := self._value_or_none(expression)):
            if time.monotonic() > end:
                text = self.value_of("document.body.innerText")
                raise AssertionError(f"not within {timeout_s:g} s: {expression}; {text}")
            self.page.wait_for_timeout(50)  # hears the console meanwhile
        return value

    def _value_or_none(self, expression: str) -> Any:
        from playwright.sync_api import Error

        try:
            return self.value_of(f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()")
        except Error as error:
            if "context was destroyed" not in str(error):
                raise
            return None  # it went to another page meanwhile

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a person without a mouse."""
        for key in keys:
            self.page.keyboard.press(key)

    def show(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Look at the page in a window of this size, in a light or a dark theme."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if dark else "light")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, to a PNG file."""
        self.page.screenshot(path=path, full_page=whole)
