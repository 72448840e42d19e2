// Prints the page, or saves it as a PDF: all of it, in light colours.

import { paintVisible, toPaper } from "./charts/panel.js";
import { seeAll } from "./pages/job/sight.js";

export function keepPrintable(button) {
  button.addEventListener("click", async () => {
    await seeAll();
    await paintVisible();
    print();
  });
  // With Ctrl-P the browser does not wait for answers: what has come in is painted.
  addEventListener("beforeprint", () => toPaper(true));
  addEventListener("afterprint", () => toPaper(false));
}
