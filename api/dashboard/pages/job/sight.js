// Things that cost a request are fetched only once they are visible.

const waiting = new WeakMap(); // node => {see, catchUp}
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) waiting.get(target)?.see(isIntersecting);
}, { rootMargin: "200px" });

// Calls `act` when `node` becomes visible. While it is visible, each call of the returned function calls `act` again; an
// earlier call takes effect as soon as it becomes visible.
export function whenSeen(node, act) {
  let isSeen = false;
  let isDue = true;
  const run = () => {
    isDue = false;
    return act();
  };
  const catchUp = () => (isDue ? run() : undefined);
  const see = (isIn) => {
    isSeen = isIn;
    if (isIn) catchUp();
  };
  waiting.set(node, { see, catchUp });
  sight.observe(node);
  return () => (isSeen ? run() : (isDue = true));
}

// Fetches, this once, all that waits to become visible.
export const seeAll = () => Promise.all([...document.querySelectorAll("section, article")].filter((node) => node.checkVisibility()).map((node) => waiting.get(node)?.catchUp()));
