// Branches: which column each row is drawn in, and the lines between them.

export const ROW = 46;
const COLUMN = 14;
const MARGIN = 10;

// `parents` has the row before each row, -1 for none. A run of first children shares a column; a
// later child of a row begins a new one.
export function layout(parents) {
  const columns = [];
  const runs = [];
  const runOf = [];
  const hasChild = new Set();
  for (const [row, parent] of parents.entries()) {
    let run = parent >= 0 && !hasChild.has(parent) ? runOf[parent] : undefined;
    if (run === undefined) runs.push((run = { start: parent < 0 ? row : parent, end: row, members: [] }));
    run.end = row;
    run.members.push(row);
    runOf.push(run);
    hasChild.add(parent);
  }
  const ends = [];
  for (const run of runs.sort((a, b) => a.start - b.start || a.end - b.end || a.members[0] - b.members[0])) {
    let column = ends.findIndex((end) => end < run.start);
    if (column < 0) column = ends.length;
    ends[column] = run.end;
    for (const each of run.members) columns[each] = column;
  }
  return { columns, width: ends.length };
}

export function gutterWidth(width) {
  return MARGIN * 2 + (Math.min(width, 8) - 1) * COLUMN;
}

export function position(column, row) {
  return [MARGIN + Math.min(column, 7) * COLUMN, row * ROW + ROW / 2];
}

export function edge(row, parent, columns) {
  const [x, y] = position(columns[row], row);
  const [fromX, fromY] = position(columns[parent], parent);
  if (x === fromX) return `M${fromX} ${fromY}V${y}`;
  return `M${fromX} ${fromY}C${fromX} ${fromY + ROW / 2} ${x} ${fromY + ROW / 2} ${x} ${fromY + ROW}V${y}`;
}
