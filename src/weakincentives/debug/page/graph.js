// Branches: which column each step is drawn in, and the lines between them.

export const ROW = 46;
const COLUMN = 14;
const MARGIN = 10;

// A run of first children shares a column; a later child of a step begins a new one.
export function layout(steps) {
  const columns = new Map();
  const runs = [];
  const byStep = new Map();
  const hasChild = new Set();
  for (const [row, step] of steps.entries()) {
    const run = step.parent !== null && !hasChild.has(step.parent) ? byStep.get(step.parent) : undefined;
    if (run === undefined) {
      const created = { start: step.parent === null ? row : step.parent - 1, end: row, members: [step.n] };
      runs.push(created);
      byStep.set(step.n, created);
    } else {
      run.end = row;
      run.members.push(step.n);
      byStep.set(step.n, run);
    }
    hasChild.add(step.parent);
  }
  const ends = [];
  for (const run of runs.sort((a, b) => a.start - b.start || a.end - b.end || a.members[0] - b.members[0])) {
    let column = ends.findIndex((end) => end < run.start);
    if (column < 0) column = ends.length;
    ends[column] = run.end;
    for (const each of run.members) columns.set(each, column);
  }
  return { columns, width: ends.length };
}

export function gutterWidth(width) {
  return MARGIN * 2 + (Math.min(width, 8) - 1) * COLUMN;
}

export function position(column, row) {
  return [MARGIN + Math.min(column, 7) * COLUMN, row * ROW + ROW / 2];
}

export function edges(steps, columns) {
  return steps
    .filter((step) => step.parent !== null)
    .map((step) => {
      const [x, y] = position(columns.get(step.n), step.n - 1);
      const [fromX, fromY] = position(columns.get(step.parent), step.parent - 1);
      if (x === fromX) return `M${fromX} ${fromY}V${y}`;
      return `M${fromX} ${fromY}C${fromX} ${fromY + ROW / 2} ${x} ${fromY + ROW / 2} ${x} ${fromY + ROW}V${y}`;
    });
}
