// What the service tells of changes: from the worker that all tabs share, or where a browser has none, by oneself.

import { follow } from "./stream.js";

// Calls `hear` with { state, jobs, moved }: a state or null, the ids of jobs that changed, and of those of them that are
// in another state, were edited, or are new or gone. Returns what reconnects at once.
// `job`: the only one that this page shows. Alone it hears of that one; others may share the worker's stream, which has all.
export function listen(hear, job = null) {
  const path = job ? `/v1/jobs/${encodeURIComponent(job)}/events` : undefined;
  const alone = () => follow(({ state = null, jobs = [], moved = [] }) => hear({ state, jobs, moved }), path);
  if (!("SharedWorker" in window)) return alone();
  const worker = new SharedWorker(new URL("worker.js", import.meta.url), { type: "module", name: "wiretune" });
  let again = () => worker.port.postMessage("again");
  worker.onerror = () => (again = alone()); // a browser without modules in workers
  worker.port.onmessage = ({ data }) => {
    hear(data);
    worker.port.postMessage("next");
  };
  worker.port.postMessage("next");
  addEventListener("pagehide", () => worker.port.postMessage("bye"));
  addEventListener("pageshow", ({ persisted }) => persisted && worker.port.postMessage("next"));
  return () => again();
}

// Has `act` run while nobody looks: within `gapMs` of being asked for, or at once where that is urgent.
export function unseen(act, gapMs) {
  let timer = null;
  return (isUrgent) => {
    if (!document.hidden || (timer && !isUrgent)) return;
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = null;
      if (document.hidden) act();
    }, isUrgent ? 0 : gapMs);
  };
}

// Has `act` run soon after it is asked for, once for all who ask meanwhile; not while nobody looks, except at first.
// After a failure it runs again, after ever longer waits, if `failed` says so.
export function paced(act, failed, { gapMs, longestMs = 30000 }) {
  let isWanted = false;
  let isBusy = false;
  let isFirst = true;
  let waitMs = gapMs;
  let wake = () => {};

  async function run() {
    if (isBusy) return;
    isBusy = true;
    while (isWanted && (isFirst || !document.hidden)) {
      isWanted = isFirst = false;
      try {
        await act();
        waitMs = gapMs;
      } catch (error) {
        isWanted = failed(error);
        waitMs = isWanted ? Math.min(longestMs, 2 * (waitMs || gapMs)) : 0;
      }
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, waitMs);
        wake = () => waitMs > gapMs && (clearTimeout(timer), setTimeout(resolve, gapMs)); // who asks after a failure knows of a change
      });
    }
    isBusy = false;
  }

  document.addEventListener("visibilitychange", () => document.hidden || run());
  return () => {
    isWanted = true;
    wake();
    run();
  };
}
