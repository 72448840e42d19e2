// What pages know of a job: what its states mean, who may change it, and how its trials are called.

const OVER = ["succeeded", "failed", "cancelled"];
export const TRAINING = ["running", "pausing", "stopping", "cancelling"];

export const isOver = ({ state }) => OVER.includes(state);

// As the service has it, which refuses the rest: a viewer only looks, a submitter changes what is his own.
export const mayChange = (me, job) => me.role !== "viewer" && (me.role !== "submitter" || me.name === job.owner);

// Why it is in its state; of one that waits, its place in the queue as well.
export const whyOf = ({ reason, queue }) => queue?.sentence ?? reason;

// The arm's name, with the seed where there are several.
export const trialName = (arm, seed, { seeds }) => (seeds.length > 1 ? `${arm} seed ${seed}` : arm);
