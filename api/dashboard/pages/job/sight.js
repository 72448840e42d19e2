// What costs a request is fetched when somebody looks.

const waiting = new WeakMap();
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) waiting.get(target)?.(isIntersecting);
}, { rootMargin: "200px" });

// Calls `act` when `node` comes into sight, and again on each call of what it returns while it is there; a call before
// that is made up for.
export function whenSeen(node, act) {
  let isSeen = false;
  let isDue = true;
  const run = () => {
    if (!isSeen) return (isDue = true);
    isDue = false;
    return act();
  };
  waiting.set(node, (isIn) => {
    isSeen = isIn;
    return isIn && isDue ? run() : undefined;
  });
  sight.observe(node);
  return run;
}

// Acts as if somebody looked at all of the page.
export const seeAll = () => Promise.all([...document.querySelectorAll("section, article")].filter((node) => node.checkVisibility()).map((node) => waiting.get(node)?.(true)));
