// Summaries of several numbers.

export const mean = (values) => (values.length ? values.reduce((sum, each) => sum + each, 0) / values.length : null);

// Of an even number the mean of the middle two; null of none. Infinity stands for what never came.
export function median(values) {
  const sorted = values.toSorted((one, other) => one - other);
  const half = sorted.length >> 1;
  if (!sorted.length) return null;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
