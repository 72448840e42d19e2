// What the states of a job mean to a page.

export const OVER = ["succeeded", "failed", "cancelled"];
export const TRAINING = ["running", "pausing", "stopping", "cancelling"];

// Why it is in its state; of one that waits, its place in the queue as well.
export const whyOf = ({ reason, queue }) => queue?.sentence ?? reason;
