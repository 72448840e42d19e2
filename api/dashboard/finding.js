// Jobs by what people call them: the beginning or end of an id, as lists show it, or a whole name.

import * as api from "./api.js";

const MOST = 8; // jobs that are named where one name has several

export const isWholeId = (ref) => /^job-[0-9a-f]{24}$/.test(ref);

// The jobs that `ref` means, archived ones too. A whole id costs no request.
export const jobsOf = async (ref) => (isWholeId(ref) ? [{ id: ref }] : (await api.jobs({ ref, archived: "any", limit: MOST })).jobs);
