// Things that cost a request are fetched only once they are visible.

const waiting = new WeakMap();
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) waiting.get(target)?.(isIntersecting);
}, { rootMargin: "200px" });

// Calls `act` when `node` becomes visible. While it is visible, each call of the returned function calls `act` again; an
// earlier call takes effect as soon as it becomes visible.
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

// Acts as if all of the page were visible.
export const seeAll = () => Promise.all([...document.querySelectorAll("section, article")].filter((node) => node.checkVisibility()).map((node) => waiting.get(node)?.(true)));
