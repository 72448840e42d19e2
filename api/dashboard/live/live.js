// The service's events: from the worker that all tabs share, or directly if the browser has no shared workers.

import { follow } from "./stream.js";

// Calls `hear` with { state, jobs, moved }: a state or null, the ids of changed jobs, and of those the ids of jobs that are
// in another state, edited, new or gone. Returns a function that reconnects at once.
// `job`: the only job on this page. Without a worker, only its events come; the shared stream has those of all jobs.
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

// Makes `act` run while the page is hidden: within `gapMs` of a request, or at once if it is urgent.
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

// Makes `act` run soon after a request, once for all requests in between, and except at first only while the page is
// visible. After a failure it runs again, after growing waits, if `failed` says so.
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
