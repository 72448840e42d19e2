// Facts about a job for all pages: the meaning of its states, who may change it, and the names of its trials.

const OVER = ["succeeded", "failed", "cancelled"];
export const TRAINING = ["running", "pausing", "stopping", "cancelling"];

export const PRIORITIES = ["low", "normal", "high", "urgent"];

export const isOver = ({ state }) => OVER.includes(state);

// As the service checks it: a viewer changes nothing, a submitter only their own jobs.
export const mayChange = (me, job) => me.role !== "viewer" && (me.role !== "submitter" || me.name === job.owner);

// The reason for its state; while it waits, also its place in the queue.
export const whyOf = ({ reason, queue }) => queue?.sentence ?? reason;

// The arm's name, with the seed if there are several.
export const trialName = (arm, seed, { seeds }) => (seeds.length > 1 ? `${arm} seed ${seed}` : arm);
