// The names of the series that trials have recorded in training steps: own numbers, memory, rates, bytes.

import * as api from "../../api.js";
import { LOSS } from "../../charts/loss.js";

const isOfTraining = ({ name, num_points: count }) => count > 0 && name !== LOSS && !/^(validation|insurance)_/.test(name);

// Returns a function that gives the names for the page's current trials. They are asked for again when another trial has
// taken its first steps, which bring all of its series.
export function recordedNames(id) {
  let [begun, names] = [0, []];
  return async (trials) => {
    const now = trials.filter((trial) => trial.step > 0).length;
    if (now !== begun) {
      const found = await api.recorded(id);
      [begun, names] = [now, [...new Set(found.filter(isOfTraining).map((each) => each.name))].sort()];
    }
    return names;
  };
}
