// One event stream for all tabs: a browser allows six connections per host, so tabs must not hold one each.
// A tab asks for the `next` news, and gets everything since its last request at once.

import { follow } from "./stream.js";

const tabs = new Map(); // port => { news, waits }
let state = "connecting";
const again = follow((news) => {
  state = news.state ?? state;
  for (const port of tabs.keys()) leave(port, news);
});

function leave(port, { state: given, jobs = [], moved = [] }) {
  const tab = tabs.get(port);
  const before = tab.news ?? { state: null, jobs: [], moved: [] };
  tab.news = { state: given ?? before.state, jobs: new Set([...before.jobs, ...jobs]), moved: new Set([...before.moved, ...moved]) };
  hand(port);
}

function hand(port) {
  const tab = tabs.get(port);
  if (!tab.waits || !tab.news) return;
  port.postMessage({ state: tab.news.state, jobs: [...tab.news.jobs], moved: [...tab.news.moved] });
  Object.assign(tab, { news: null, waits: false });
}

const answers = {
  next(port) {
    if (!tabs.has(port)) tabs.set(port, { news: { state, jobs: [], moved: [] }, waits: false });
    tabs.get(port).waits = true;
    hand(port);
  },
  again,
  bye: (port) => tabs.delete(port),
};

self.onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => answers[data](port);
};
