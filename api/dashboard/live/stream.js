// The service's event stream, over one connection that reconnects when it breaks.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30000;
const OF_ALL = "/v1/events";
const MOVES = ["job", "job_deleted"];
const idOf = (event) => event.job_id;
const SILENCE_MS = 40000; // a comment comes every 15 s: whoever says nothing for so long is gone

// Calls `tell` with {state} (one of "live", "waiting", "refused") and with {jobs, moved}: the ids of changed jobs, and of
// those the ids of jobs that are in another state, edited, new or gone. After each "live" anything may have changed.
// Returns a function that reconnects at once. `path`: the stream of one job.
export function follow(tell, path = OF_ALL) {
  let stop = new AbortController();
  let wake = () => {};
  let waitMs = FIRST_WAIT_MS;

  const begin = () => {
    waitMs = FIRST_WAIT_MS;
    tell({ state: "live" });
  };
  const hear = (events) => {
    if (events.some((event) => event.kind === "gap")) begin();
    else tell({ jobs: events.map(idOf), moved: events.filter((event) => MOVES.includes(event.kind)).map(idOf) });
  };

  async function keepReading() {
    for (;;) {
      stop = new AbortController();
      const status = await read(path, stop, begin, hear).catch(() => null);
      if (stop.signal.reason === "again") continue;
      if (status === 404 && path !== OF_ALL) {
        path = OF_ALL; // the job is gone, or it never was: the connection is there all the same
        continue;
      }
      tell({ state: status === 401 ? "refused" : "waiting" });
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, waitMs * (0.5 + Math.random())); // or else all come back in one moment
      });
      waitMs = Math.min(LONGEST_WAIT_MS, 2 * waitMs);
    }
  }

  keepReading();
  return () => {
    stop.abort("again");
    wake();
  };
}

// Returns the status once the stream has ended. Raises if the connection breaks.
async function read(path, stop, begin, hear) {
  let silence = setTimeout(() => stop.abort("silence"), SILENCE_MS);
  try {
    const answer = await fetch(`${path}?brief=true`, { headers: { Accept: "text/event-stream" }, cache: "no-store", signal: stop.signal });
    if (!answer.ok) return answer.status;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", isFirst = true; ; isFirst = false) {
      const { value, done } = await reader.read();
      if (done) return answer.status;
      clearTimeout(silence);
      silence = setTimeout(() => stop.abort("silence"), SILENCE_MS);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      if (isFirst) begin(); // from here on nothing is missed
      const events = blocks.map(eventOf).filter((event) => event !== null);
      if (events.length) hear(events);
    }
  } finally {
    clearTimeout(silence);
  }
}

function eventOf(block) {
  const data = block.split("\n").find((line) => line.startsWith("data:"));
  return data ? JSON.parse(data.slice(5)) : null;
}
