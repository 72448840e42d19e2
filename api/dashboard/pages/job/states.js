// What the states of a job mean to its page.

export const OVER = ["succeeded", "failed", "cancelled"];
export const TRAINING = ["running", "pausing", "stopping", "cancelling"];
