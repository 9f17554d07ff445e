// Reads the data in #data and fills the head of the page and its tables; timeline.js draws the rest with
// what this hands out. Text from outside only ever becomes textContent.
const Page = (function () {
  'use strict';

  const data = JSON.parse(document.getElementById('data').textContent);
  const $ = (id) => document.getElementById(id);

  // ---- text ---------------------------------------------------------------------------------
  function number(value) {
    return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, '\u202f');
  }
  function rate(value) {
    return value >= 100 ? number(value) : value.toPrecision(3).replace(/\.?0+$/, '') || '0';
  }
  function percent(share) {
    const value = share * 100;
    return (value > 0 && value < 9.95 ? value.toFixed(1) : Math.round(value)) + '\u202f%';
  }
  function duration(us) {
    if (us === 0) return '0';
    const units = us >= 60e6 ? [60e6, 'min'] : us >= 1e6 ? [1e6, 's'] : us >= 1e3 ? [1e3, 'ms'] : [1, '\u00b5s'];
    const value = us / units[0];
    return (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)) + '\u202f' + units[1];
  }
  function bytes(value) {
    const units = ['B', 'KB', 'MB', 'GB', 'TB'];
    let unit = 0;
    while (value >= 1000 && unit < units.length - 1) {
      value /= 1000;
      unit += 1;
    }
    return (unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)) + '\u202f' + units[unit];
  }

  // ---- elements -----------------------------------------------------------------------------
  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }
  function header(columns) {
    const head = element('thead');
    const row = element('tr');
    columns.forEach((column) => {
      const cell = element('th', column.number ? 'number' : '', column.name);
      cell.scope = 'col';
      row.append(cell);
    });
    head.append(row);
    return head;
  }
  function table(id, columns, rows, empty) {
    const target = $(id);
    if (rows.length === 0) {
      target.replaceWith(element('p', 'empty', empty));
      return;
    }
    const body = element('tbody');
    rows.forEach((values) => {
      const row = element('tr');
      values.forEach((value, i) => {
        const cell = element(i === 0 ? 'th' : 'td', columns[i].number ? 'number' : 'text', value);
        if (i === 0) cell.scope = 'row';
        row.append(cell);
      });
      body.append(row);
    });
    target.append(header(columns), body);
  }

  // ---- the head of the page -----------------------------------------------------------------
  const a = data.analysis;
  const consumer = data.consumer;

  const live = data.live;  // of a live stream; null: of a feed

  function live_figures() {
    const mean = consumer.delivered > 0 ? consumer.samples / consumer.delivered : 0;
    return [
      ['Messages', number(consumer.samples), rate(a.samples_per_second) + ' a second'],
      ['Age at prediction', duration(live.age_p50), duration(live.age_p99) + ' for 99\u202f%'],
      ['Messages a batch', rate(mean), 'at most ' + number(live.largest_batch) + '; ' + number(consumer.delivered) + ' batches'],
      ['Model waited', percent(a.wait_share), duration(consumer.wait_ns / 1e3) + ' of its time'],
      ['Dropped', number(live.dropped), 'of ' + number(live.received) + ' received'],
      ['Queued', number(live.queued), 'when this was written'],
    ];
  }

  function fill_head() {
    const workers = data.workers.length;
    const how = live ? 'live' : data.mode === 'inline' ? 'in line' : workers + ' ' + (workers === 1 ? data.mode.replace(/(?:(ss)es|s)$/, '$1') : data.mode);
    $('subject').textContent = [data.title, how, duration(a.seconds * 1e6)].filter(Boolean).join(' \u00b7 ');
    document.title = (data.title ? data.title + ' \u2013 ' : '') + 'penstock report';
    $('verdict').textContent = a.verdict;
    a.recommendations.forEach((text) => $('advice').append(element('li', '', text)));

    const lost = consumer.skipped + consumer.replaced;
    const rows = live ? live_figures() : [
      ['Batches', number(consumer.delivered), rate(a.batches_per_second) + ' a second'],
      consumer.samples > 0
        ? ['Samples a second', rate(a.samples_per_second), number(consumer.samples) + ' samples']
        : ['Bytes a second', bytes(a.bytes_per_second), bytes(consumer.bytes) + ' in all'],
      ['Model waited', percent(a.wait_share), duration(consumer.wait_ns / 1e3) + ' of its time'],
      ['Workers at work', percent(a.busy_share), duration(data.total.busy_ns / 1e3) + ' in user code'],
      ['Copies avoided', percent(a.avoided_share), bytes(data.total.bytes_avoided) + ' not copied'],
      ['Workers replaced', number(consumer.restarts), lost ? number(lost) + ' samples lost' : 'nothing lost'],
    ];
    rows.forEach(([name, value, note]) => {
      const box = element('div');
      const figure = element('dd', '', value);
      figure.append(element('small', '', note));
      box.append(element('dt', '', name), figure);
      $('figures').append(box);
    });
  }

  // ---- tables -------------------------------------------------------------------------------
  // Stages with bars of their shares; colours and further columns are each group's and the caller's.
  function fill_shares(id, more, groups) {
    const columns = [{name: 'stage'}, {name: 'share'}, {name: '', number: true}, {name: 'per batch', number: true}, {name: 'total', number: true}]
      .concat(more.map(([title]) => ({name: title, number: true})));
    $(id).append(header(columns));
    groups.forEach(([name, stages, colours]) => {
      const body = element('tbody', 'group');
      const title = element('tr');
      const cell = element('th', '', name);
      cell.colSpan = columns.length;
      title.append(cell);
      body.append(title);
      stages.forEach((stage, i) => {
        const row = element('tr');
        const label = element('th', '', stage.name);
        label.scope = 'row';
        const bar = element('td', 'bar');
        const track = element('div', 'bar-track');
        const filled = element('div', 'bar-fill');
        filled.style.width = (stage.share * 100).toFixed(2) + '%';
        filled.style.background = 'var(' + colours[i % colours.length] + ')';
        track.append(filled);
        bar.append(track);
        row.append(label, bar, element('td', 'number', percent(stage.share)),
          element('td', 'number', duration(stage.per_batch_ms * 1e3)), element('td', 'number', duration(stage.seconds * 1e6)));
        more.forEach(([, text]) => row.append(element('td', 'number', text(stage))));
        body.append(row);
      });
      $(id).append(body);
    });
  }

  function fill_stages() {
    const workers = data.workers.length === 1 ? 'The worker' : 'The workers, together';
    fill_shares('stages', [], [
      ['The model', a.consumer_stages, ['--wait', '--step']],
      [workers, a.worker_stages, ['--user', '--hand', '--ticket', '--slot']],
    ].slice(0, live ? 1 : 2));
    const chain = [[workers, data.chain, ['--user']], ['The thread of the stream', data.stream, ['--hand']]]
      .filter((group) => group[1].length > 0);
    if (chain.length === 0) return;
    $('chain-card').hidden = false;
    const per_row = (stage) => stage.rows > 0 ? duration(stage.seconds * 1e6 / stage.rows) : '';
    fill_shares('chain', [['per row', per_row], ['rows', (stage) => number(stage.rows)]], chain);
  }

  const REASONS = {
    not_owned: 'view of an array that lives on',
    referenced: 'still referenced in the worker',
    foreign: 'from another library',
    sparse: 'small part of a large array',
    small: 'small, travels in the message',
    pickled: 'not an array: pickled',
    row: 'row of a batch (the one write due)',
    no_room: 'arena full',
  };

  function fill_live_tables() {
    $('workers-card').hidden = true;
    $('copies-title').textContent = 'Batch sizes';
    table('copies', [{name: 'messages'}, {name: 'batches', number: true}, {name: 'share', number: true}],
      live.sizes.map(([least, count]) => [
        least === 1 ? '1' : number(least) + ' to ' + number(Math.min(2 * least - 1, live.largest_batch)),
        number(count), percent(count / consumer.delivered)]), 'There were no batches.');
    add_facts([
      ['Most messages of a batch', data.batch_size ? number(data.batch_size) : 'unknown'],
      ['Queue', number(data.queue_size) + ' messages, ' + bytes(data.max_bytes)],
      ['Oldest message at its prediction', duration(live.age_max)],
      ['Cores', data.cores ? number(data.cores) : 'unknown'],
    ].concat(data.facts));
  }

  function add_facts(facts) {
    facts.forEach(([name, value]) => {
      const box = element('div');
      box.append(element('dt', '', name), element('dd', '', value));
      $('facts').append(box);
    });
  }

  function fill_tables() {
    fill_stages();
    if (live) {
      fill_live_tables();
      return;
    }
    const total = data.total;
    const copies = data.copies.map((row) => [REASONS[row.reason] || row.reason, number(row.copies), bytes(row.bytes)]);
    if (total.copies_avoided > 0) {
      copies.unshift(['none: handed over as it is', number(total.copies_avoided), bytes(total.bytes_avoided)]);
    }
    table('copies', [{name: 'why'}, {name: 'arrays', number: true}, {name: 'bytes', number: true}], copies, 'No arrays were handed over.');

    const us = (ns) => duration(ns / 1e3);
    table('workers',
      ['worker', 'id', 'tickets', 'samples', 'busy', 'wait: ticket', 'wait: space', 'bytes', 'page faults', 'errors', 'replaced']
        .map((name, i) => ({name: name, number: i > 0})),
      data.workers.map((worker) => {
        const f = worker.figures;
        return [worker.name, worker.pid ? worker.kind + ' ' + worker.pid : worker.kind, number(f.tickets), number(f.samples), us(f.busy_ns),
          us(f.wait_ticket_ns), us(f.wait_slot_ns), bytes(f.bytes), number(f.page_faults), number(f.errors), number(f.deaths)];
      }), 'No workers.');

    if (data.losses.length > 0) {
      $('losses-card').hidden = false;
      table('losses', [{name: 'epoch', number: true}, {name: 'index', number: true}, {name: 'reason'}],
        data.losses.map((loss) => [number(loss.epoch), number(loss.index), loss.reason]), '');
      if (data.losses_left_out > 0) {
        $('losses-more').textContent = 'and ' + number(data.losses_left_out) + ' more';
      }
    }

    add_facts([
      ['Mode', data.mode], ['Batch size', data.batch_size ? number(data.batch_size) : 'an item is a batch'],
      ['Queue', number(data.queue_size) + ' batches' + (data.max_bytes ? ', ' + bytes(data.max_bytes) : '')],
      ['Workers that make batches', data.active_workers ? number(data.active_workers) : 'all'],
      ['Cores', data.cores ? number(data.cores) : 'unknown'], ['Epochs finished', number(consumer.epochs)],
      ['Retried', number(consumer.retried)], ['Given to another worker', number(consumer.reissued)], ['Timeouts', number(consumer.timeouts)],
    ].concat(data.facts));
  }

  fill_head();
  fill_tables();
  return {data, element, number, rate, duration};
})();
