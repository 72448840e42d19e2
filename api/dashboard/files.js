// Files that the browser saves under a name, and those that the page itself makes.

export function save(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

// "Loss over steps" becomes "loss-over-steps".
export const fileName = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80) || "wiretune";

export const saveRows = (name, rows) => save(name, new Blob([csv(rows)], { type: "text/csv" }));

// Every plain value of the rows, exact, by name; nested values are "part.name". Lists are left out.
export function csv(rows) {
  const flat = rows.map((row) => flattened(row, ""));
  const names = [...new Set(flat.flatMap((row) => Object.keys(row)))];
  return [names, ...flat.map((row) => names.map((name) => row[name]))].map((cells) => `${cells.map(cell).join(",")}\r\n`).join("");
}

function flattened(row, before) {
  return Object.entries(row).reduce((found, [name, value]) => {
    if (typeof value === "object" && value !== null) return Array.isArray(value) ? found : { ...found, ...flattened(value, `${before}${name}.`) };
    return { ...found, [before + name]: value };
  }, {});
}

// A spreadsheet runs text that begins like a formula.
function cell(value) {
  const text = value === null || value === undefined ? "" : typeof value === "string" ? value.replace(/^[=+\-@\t\r]/, "'$&") : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
