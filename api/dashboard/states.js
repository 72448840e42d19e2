// Facts about a job for all pages: the meaning of its states, who may change it, and the names of its trials.

const OVER = ["succeeded", "failed", "cancelled"];
export const TRAINING = ["running", "pausing", "stopping", "cancelling"];

export const PRIORITIES = ["low", "normal", "high", "urgent"];

// In which one trial can be stopped, and the others go on.
const TRIALS_STOP_IN = ["queued", "starting", "running", "pausing", "paused"];

export const isOver = ({ state }) => OVER.includes(state);

// As the service checks it: a viewer changes nothing, a submitter only their own jobs.
export const mayChange = (me, job) => me.role !== "viewer" && (me.role !== "submitter" || me.name === job.owner);

// Not the only trial of a job, which `stop` ends.
export const mayStopTrials = (me, job, trials) => mayChange(me, job) && TRIALS_STOP_IN.includes(job.state) && trials.length > 1;

// The name that Python gives to an error of this product, before its message.
const OUR_ERROR = /(?:^|(?<=: ))(?:api|search|service|trainers|wiretune)(?:\.\w+)+: /;
const told = (reason) => reason.replace(OUR_ERROR, "");

// The waits of which the queue writes nothing into the job's reason: it still says how the job came there, as by an extension.
const UNEXPLAINED = ["starts", "back_off"];

// The reason for its state; while it waits, also its place in the queue. That an attempt was lost is told by `lostOf`.
export function whyOf({ reason = "", queue, lost }) {
  const isLoss = lost && reason.startsWith(`attempt ${lost.number} ended: `);
  const isTold = isLoss || (queue?.sentence && !UNEXPLAINED.includes(queue.kind));
  return [queue?.sentence, isTold ? "" : told(reason)].filter(Boolean).join("; ");
}

// The last attempt, where it was lost and the job has got no further since; else null.
export const lostOf = ({ lost }) => (lost
  ? `attempt ${lost.number} was lost: ${told(lost.reason)} (${lost.num_lost} in a row without progress; after ${lost.max_lost} the job fails)` : null);

// The arm's name, with the seed if there are several.
export const trialName = (arm, seed, { seeds }) => (seeds.length > 1 ? `${arm} seed ${seed}` : arm);
