//! Scans. A scan has a lane for each bucket, which reads the bucket's rows, and merges the lanes in key order.
//!
//! A lane reads the heads of its bucket in pages of growing size. All lanes that run low read at the same time. The
//! rows that a step has read but not returned stay in the lanes. The page passes the lanes to the next step in its
//! `snapshot`, so klad reads each row about once and does not read a finished bucket again. A step shows what each
//! bucket had when klad read the bucket's page, not the state of one moment.
//!
//! A head has a bounded size. The payloads that are not in heads are read afterwards, for the entries of the page only.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::PageBuilder;
use crate::cassandra::failure::Failure;
use crate::cassandra::level::Level;
use crate::cassandra::read::{Columns, unreadable};
use crate::cassandra::row::Head;
use crate::cassandra::{AT_ONCE, Cluster};
use crate::limits::REMOVED_PER_ATTEMPT_MAX;
use crate::operation::{Entry, Error, Outcome, Page, ScanStep, Snapshot, View};
use klad_base::clock;
use klad_base::sync::Mutex;

/// About the maximum number of heads (see `row`) that the lanes of one scan hold. With more than 512 buckets, it is
/// about four heads for each bucket. A head has a payload of up to 512 bytes, and all metadata. Lanes with large heads
/// read fewer.
const ROWS_AHEAD_MAX: usize = 2_048;

/// The minimum and the maximum number of heads that the first read of a lane asks for.
const FIRST_ROWS: (usize, usize) = (4, 64);

/// If a page of a lane has more bytes than this, the next read of the lane asks for half as many rows.
const LANE_BYTES_MAX: usize = 64 << 10;

/// The rows of a scan that were read ahead.
struct Ahead {
    lanes: Vec<Lane>,
    /// The range that is left is `from..end`. The lanes have left out no row of it.
    from: Bytes,
    end: Option<Bytes>,
    reverse: bool,
}

/// The rows of one bucket that were read ahead.
struct Lane {
    bucket: i32,
    /// In the order of the scan.
    rows: VecDeque<(Bytes, Head)>,
    /// The last key that was read, even if its row has been returned since.
    last: Option<Bytes>,
    /// Whether the bucket may have more rows.
    more: bool,
    /// The number of rows that the next read asks for.
    limit: usize,
}

/// The rows that are kept between two steps.
struct Kept(Mutex<Option<Ahead>>);

impl Ahead {
    fn new(step: &ScanStep, buckets: u32) -> Ahead {
        let count = buckets as usize;
        let limit = (2 * step.entries_max / count).clamp(FIRST_ROWS.0, FIRST_ROWS.1);
        let lane = |bucket| Lane { bucket, rows: VecDeque::new(), last: None, more: true, limit };
        let buckets = i32::try_from(buckets).expect("at most BUCKETS_MAX");
        Ahead {
            lanes: (0..buckets).map(lane).collect(),
            from: step.from.clone(),
            end: step.end.clone(),
            reverse: step.reverse,
        }
    }

    /// Narrows the rows to the range of `step`. Returns `None` if they do not cover all of that range.
    fn narrowed(mut self, step: &ScanStep) -> Option<Ahead> {
        let within = if step.reverse {
            let ends_sooner = |end: &Bytes| step.end.as_ref().is_some_and(|own| own <= end);
            step.from == self.from && self.end.as_ref().is_none_or(ends_sooner)
        } else {
            step.from >= self.from && step.end == self.end
        };
        if !within || step.reverse != self.reverse {
            return None;
        }
        (self.from, self.end) = (step.from.clone(), step.end.clone());
        for lane in &mut self.lanes {
            let outside = |key: &Bytes| {
                if step.reverse { step.end.as_ref().is_some_and(|end| key >= end) } else { *key < step.from }
            };
            while lane.rows.front().is_some_and(|(key, _)| outside(key)) {
                lane.rows.pop_front();
            }
        }
        Some(self)
    }

    /// The lanes to read before the next row is known. If a lane is empty, these are all lanes that run low; otherwise
    /// none.
    fn low(&self) -> Vec<usize> {
        if !self.lanes.iter().any(|lane| lane.more && lane.rows.is_empty()) {
            return Vec::new();
        }
        let low = |lane: &Lane| lane.more && lane.rows.len() <= lane.limit / 2;
        (0..self.lanes.len()).filter(|index| low(&self.lanes[*index])).collect()
    }

    /// The range of a lane that klad has not read yet. It is behind the last row that klad has read.
    fn unread(&self, lane: &Lane) -> (Bytes, Option<Bytes>) {
        let (from, end) = (self.from.clone(), self.end.clone());
        match &lane.last {
            None => (from, end),
            Some(last) if self.reverse => (from, Some(end.map_or(last.clone(), |end| end.min(last.clone())))),
            Some(last) => (from.max(behind(last)), end),
        }
    }

    /// Adds the rows that klad has read for a lane. A row without a head has expired in part, and counts as absent.
    fn add(&mut self, index: usize, rows: Vec<(Bytes, Option<Head>)>) {
        let active = self.lanes.iter().filter(|lane| lane.more).count();
        let lane = &mut self.lanes[index];
        let bytes: usize =
            rows.iter().map(|(key, head)| key.len() + head.as_ref().map_or(0, |head| head.raw.len())).sum();
        lane.more = rows.len() >= lane.limit;
        if bytes > LANE_BYTES_MAX {
            lane.limit = (lane.limit / 2).max(1);
        } else {
            lane.limit = (lane.limit * 2).min((ROWS_AHEAD_MAX / active.max(1)).max(FIRST_ROWS.0));
        }
        lane.last = rows.last().map(|(key, _)| key.clone()).or(lane.last.take());
        lane.rows.extend(rows.into_iter().filter_map(|(key, head)| Some((key, head?))));
    }

    /// The lane with the next row. Each lane must have a row, unless its bucket has no more rows.
    fn next(&self) -> Option<usize> {
        let front = |index: &usize| self.lanes[*index].rows.front().map(|(key, _)| key);
        let with_rows = (0..self.lanes.len()).filter(|index| front(index).is_some());
        if self.reverse {
            with_rows.max_by(|one, other| front(one).cmp(&front(other)))
        } else {
            with_rows.min_by(|one, other| front(one).cmp(&front(other)))
        }
    }
}

/// The smallest key behind `key`.
fn behind(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// The page of a step under construction.
struct Building<'s> {
    step: &'s ScanStep,
    entries: Vec<(Bytes, Head)>,
    bytes: usize,
    expired: u64,
}

/// What a step does after it has looked at a row.
enum Then {
    Go,
    /// The page ends. The scan continues at this row; with `StopBehind`, behind it.
    StopAt(Bytes),
    StopBehind(Bytes),
    TooLarge(usize),
}

/// What a step needs next.
enum Progress {
    /// The step needs more rows of these lanes.
    Read(Vec<usize>),
    /// The page is complete. The scan continues at this bound; `None` if no rows are left.
    Ends(Option<Bytes>),
    /// The step needs a larger limit, because the first entry alone has so many bytes.
    TooLarge(usize),
}

/// Moves rows from the lanes to the page as long as the next row is known.
fn advance(ahead: &mut Ahead, building: &mut Building<'_>, now_ms: u64) -> Progress {
    loop {
        let low = ahead.low();
        if !low.is_empty() {
            return Progress::Read(low);
        }
        let Some(index) = ahead.next() else { return Progress::Ends(None) };
        let rows = &mut ahead.lanes[index].rows;
        let (key, head) = rows.front().expect("the next row");
        let then = building.offer(key, head, now_ms);
        if matches!(then, Then::Go | Then::StopBehind(_)) {
            rows.pop_front();
        }
        match then {
            Then::Go => {}
            Then::StopAt(key) => return Progress::Ends(Some(PageBuilder::bound(&key, ahead.reverse))),
            Then::StopBehind(key) if ahead.reverse => return Progress::Ends(Some(key)),
            Then::StopBehind(key) => return Progress::Ends(Some(behind(&key))),
            Then::TooLarge(bytes) => return Progress::TooLarge(bytes),
        }
    }
}

impl Building<'_> {
    fn charge(&self, key: &Bytes, head: &Head) -> usize {
        key.len() + if self.step.keys_only { head.bytes() - head.payload_bytes() } else { head.bytes() }
    }

    /// Adds the next row to the page, unless the row has expired or the page ends before it.
    fn offer(&mut self, key: &Bytes, head: &Head, now_ms: u64) -> Then {
        if head.expired(now_ms) {
            self.expired += 1;
            let enough = self.expired > REMOVED_PER_ATTEMPT_MAX;
            return if enough { Then::StopBehind(key.clone()) } else { Then::Go };
        }
        // Checked only when there is one more row, so that a page that is full at the end of the range says that
        // nothing is left.
        if self.entries.len() == self.step.entries_max {
            return Then::StopAt(key.clone());
        }
        let charge = self.charge(key, head);
        if charge > self.step.bytes_max.saturating_sub(self.bytes) {
            return if self.entries.is_empty() { Then::TooLarge(charge) } else { Then::StopAt(key.clone()) };
        }
        self.bytes += charge;
        self.entries.push((key.clone(), head.clone()));
        Then::Go
    }
}

impl Cluster {
    /// Executes one step of a scan.
    pub(super) async fn scan(&self, step: ScanStep) -> crate::Result {
        assert!(step.entries_max >= 1, "a step without entries would make no progress");
        let level = self.levels.of_write(step.consistency);
        if step.end.as_ref().is_some_and(|end| *end <= step.from) {
            let page = Page::Entries { entries: Vec::new(), next: None, snapshot: None };
            return Ok(Outcome::Page(page));
        }
        let kept = match &step.view {
            View::Latest => None,
            View::Take => Some(Arc::new(Kept(Mutex::new(None)))),
            View::At(Snapshot(state)) => state.clone().downcast::<Kept>().ok(),
        };
        let ahead = kept.as_ref().and_then(|kept| kept.0.lock().take());
        let mut ahead =
            ahead.and_then(|ahead| ahead.narrowed(&step)).unwrap_or_else(|| Ahead::new(&step, self.buckets));
        let mut building = Building { step: &step, entries: Vec::new(), bytes: 0, expired: 0 };
        let now_ms = clock::unix_ms();
        let next = loop {
            match advance(&mut ahead, &mut building, now_ms) {
                Progress::Read(lanes) => self.read_lanes(&mut ahead, lanes, level).await?,
                Progress::Ends(next) => break next,
                Progress::TooLarge(bytes) => {
                    keep(kept.as_ref(), ahead);
                    return Ok(Outcome::Page(Page::TooLarge { bytes }));
                }
            }
        };
        if next.is_some() {
            keep(kept.as_ref(), ahead);
        }
        let entries = self.with_payloads(building.entries, step.keys_only, level).await?;
        let snapshot = kept.filter(|_| next.is_some()).map(|kept| Snapshot(kept));
        Ok(Outcome::Page(Page::Entries { entries, next, snapshot }))
    }

    /// Reads the next rows of these lanes.
    async fn read_lanes(&self, ahead: &mut Ahead, lanes: Vec<usize>, level: Level) -> Result<(), Error> {
        let reverse = ahead.reverse;
        let reads = lanes.into_iter().map(|index| {
            let lane = &ahead.lanes[index];
            let (range, limit, bucket) = (ahead.unread(lane), lane.limit, lane.bucket);
            async move { Ok::<_, Error>((index, self.heads(bucket, range, reverse, limit, level).await?)) }
        });
        // Collected, because the iterator borrows `ahead`, which changes afterwards.
        let reads: Vec<_> = reads.collect();
        let found: Result<Vec<_>, Error> =
            futures_util::stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await;
        for (index, rows) in found? {
            ahead.add(index, rows);
        }
        Ok(())
    }

    /// Reads the heads of a part of a bucket.
    async fn heads(
        &self,
        bucket: i32,
        (from, end): (Bytes, Option<Bytes>),
        reverse: bool,
        limit: usize,
        level: Level,
    ) -> Result<Vec<(Bytes, Option<Head>)>, Error> {
        if end.as_ref().is_some_and(|end| *end <= from) {
            return Ok(Vec::new());
        }
        let (order, limit) = (usize::from(reverse), i32::try_from(limit).expect("at most ROWS_AHEAD_MAX"));
        let (statements, from) = (&self.statements, &from[..]);
        let result = match &end {
            Some(end) => {
                let statement = statements.scan_between[order].at(level);
                self.session.execute_unpaged(statement, (bucket, from, &end[..], limit)).await
            }
            None => self.session.execute_unpaged(statements.scan_from[order].at(level), (bucket, from, limit)).await,
        };
        let result = result.map_err(|error| self.counters.failed(&Failure::of(&error, level).into_read_error()))?;
        let rows = result.into_rows_result().map_err(unreadable)?;
        let mut heads = Vec::with_capacity(rows.rows_num());
        for row in rows.rows::<(Bytes, Option<Bytes>)>().map_err(unreadable)? {
            let (key, head) = row.map_err(unreadable)?;
            heads.push((key, head.map(Head::decode).transpose()?));
        }
        Ok(heads)
    }

    /// The entries of a page, with the payloads that are not in their heads.
    async fn with_payloads(
        &self,
        rows: Vec<(Bytes, Head)>,
        keys_only: bool,
        level: Level,
    ) -> Result<Vec<Entry>, Error> {
        let entry = async |(key, head): (Bytes, Head)| {
            let value_bytes = head.payload_bytes();
            if keys_only {
                return Ok(Some(Entry { key, version: head.version, value: head.without_payload(), value_bytes }));
            }
            if let Some(value) = head.value() {
                return Ok(Some(Entry { key, version: head.version, value, value_bytes }));
            }
            // The row may have changed or disappeared since its head was read.
            let Some(stored) = self.read(&key, Columns::All, level).await? else { return Ok(None) };
            if stored.head.expired(clock::unix_ms()) {
                return Ok(None);
            }
            let current = stored.current()?;
            let value_bytes = stored.head.payload_bytes();
            Ok::<_, Error>(Some(Entry { key, version: current.version, value: current.value, value_bytes }))
        };
        let entries: Vec<Option<Entry>> =
            futures_util::stream::iter(rows.into_iter().map(entry)).buffered(AT_ONCE).try_collect().await?;
        Ok(entries.into_iter().flatten().collect())
    }
}

/// Keeps the rows that were read ahead, for the next step.
fn keep(kept: Option<&Arc<Kept>>, ahead: Ahead) {
    if let Some(kept) = kept {
        *kept.0.lock() = Some(ahead);
    }
}

#[cfg(test)]
mod tests;
