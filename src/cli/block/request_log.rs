//! `--export-file`: places from the server's own log of requests, joined after the run. On the OpenAI routes of an unpatched
//! SGLang nothing else tells the rank of a streamed reply.
//!
//! Turns are joined in blocks, each with a pass over the log, so that memory does not grow with the run.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use flate2::bufread::MultiGzDecoder;

use crate::cli::exit::{Exit, ExitWith as _};
use crate::client::{LoggedRequest, logged_request};
use crate::record::{Oddity, Place, PlaceSource, TurnRecord};
use crate::report::{Attributing, RunReport};
use crate::store::{self, RunDir};
use crate::workload::{self, Observing};

/// Turns of one block.
const BLOCK: usize = 1 << 16;

/// Files of a folder that are such logs.
const PREFIX: &str = "sglang-request-metrics-";

/// Where the server's log is.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct RequestLogArgs {
    /// SGLang's log of requests (--export-metrics-to-file-dir), plain or gzip, a file or its folder: joins the rank of each turn, which no
    /// streamed reply of the OpenAI routes tells. May be given several times
    #[arg(long = "export-file", value_name = "PATH")]
    paths: Vec<PathBuf>,
}

impl RequestLogArgs {
    /// Whether there is anything to join.
    pub(crate) fn is_given(&self) -> bool {
        !self.paths.is_empty()
    }
}

/// What a join found.
#[derive(Debug)]
pub(crate) struct Joined {
    pub report: RunReport,
    /// For the reader, in one sentence.
    pub note: String,
}

/// Joins the log with the turns of a finished run: their places go into `requests.jsonl`, `run.json` and the report.
///
/// # Errors
/// When a file cannot be read or written, or no line of the log is of this run.
pub(crate) fn join(dir: &RunDir, args: &RequestLogArgs, report: RunReport) -> anyhow::Result<Joined> {
    let logs = logs(&args.paths)?;
    let observing = observing(&report);
    let mut joining =
        Joining { logs, attributing: Attributing::new(report), observing, placed: 0, complete: 0, wanting: 0 };
    let mut rewriting = dir.rewrite_requests()?;
    let mut block = Vec::new();
    for turn in store::read_records(dir.path()).exit_with(Exit::Usage)? {
        block.push(turn.exit_with(Exit::Usage)?);
        if block.len() == BLOCK {
            joining.block(&mut block, |turn| Ok(rewriting.append(turn)?))?;
        }
    }
    joining.block(&mut block, |turn| Ok(rewriting.append(turn)?))?;
    let Joining { logs, attributing, observing, placed, complete, wanting } = joining;
    if placed == 0 && wanting > 0 {
        let shown: Vec<_> = logs.iter().map(|path| path.display().to_string()).collect();
        let why = format!(
            "--export-file: no line of {} is a request of this run; give the log that its server wrote meanwhile",
            shown.join(", ")
        );
        return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
    }
    let observed = observing.as_ref().and_then(crate::cli::facts::observed);
    let report = attributing.finish(observed);
    rewriting.finish()?;
    dir.write_report(&report)?;
    dir.write_markdown(&crate::render::markdown(&crate::render::run(&report)))?;
    let unknown =
        if observing.is_none() { "; the reuse that these places allow is unknown without the tokenizer" } else { "" };
    Ok(Joined {
        report,
        note: format!("places of {placed} of {complete} complete turns joined from the server's log{unknown}"),
    })
}

/// Files as given, and those of folders that are such logs.
fn logs(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut logs = vec![];
    for path in paths {
        let unreadable = || format!("--export-file `{}`: give a file or folder that can be read", path.display());
        if !std::fs::metadata(path).with_context(unreadable).exit_with(Exit::Usage)?.is_dir() {
            logs.push(path.clone());
            continue;
        }
        let before = logs.len();
        for entry in std::fs::read_dir(path).with_context(unreadable).exit_with(Exit::Usage)? {
            let entry = entry.with_context(unreadable).exit_with(Exit::Usage)?;
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                logs.push(entry.path());
            }
        }
        if logs.len() == before {
            let why = format!("--export-file `{}`: there is no {PREFIX}*.log in this folder", path.display());
            return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
        }
    }
    logs.sort();
    Ok(logs)
}

/// The reuse that places allow needs the plan, and the plan its tokenizer, which may be gone.
fn observing(report: &RunReport) -> Option<Observing<Place>> {
    let spec = &report.manifest.spec;
    let vocabulary = crate::cli::facts::vocabulary(spec).ok()?;
    Some(Observing::new(&workload::plan(spec, &vocabulary).ok()?))
}

struct Joining {
    logs: Vec<PathBuf>,
    attributing: Attributing,
    observing: Option<Observing<Place>>,
    /// Complete turns that a line gave a place.
    placed: u64,
    complete: u64,
    /// Those of which the server had not told it before.
    wanting: u64,
}

impl Joining {
    /// Joins these turns, hands them on in their order and leaves none.
    fn block(
        &mut self,
        turns: &mut Vec<TurnRecord>,
        mut hand_on: impl FnMut(&TurnRecord) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let ids: HashMap<String, usize> =
            turns.iter().enumerate().filter_map(|(at, turn)| Some((wanted(turn)?, at))).collect();
        self.wanting += u64::try_from(ids.len()).unwrap_or(u64::MAX);
        if !ids.is_empty() {
            for log in self.logs.clone() {
                self.placed += read_log(&log, |logged| {
                    let at = ids.get(&logged.id)?;
                    fill(&mut turns[*at], logged)
                })?;
            }
        }
        for turn in turns.drain(..) {
            self.add(&turn);
            hand_on(&turn)?;
        }
        Ok(())
    }

    fn add(&mut self, turn: &TurnRecord) {
        self.attributing.add(turn);
        self.complete += u64::from(turn.outcome.is_complete());
        let Some(observing) = &mut self.observing else { return };
        if turn.outcome.is_complete() {
            let prompt = turn.planned_prompt_tokens.map_or(0, u64::from);
            let id = (turn.group, turn.session, turn.turn);
            observing.add(id, prompt, turn.planned_output_tokens, turn.place.clone());
        } else {
            observing.end(turn.group, turn.session);
        }
    }
}

/// The id by which the server knows a complete turn of unknown place, or of one that was only asked for.
fn wanted(turn: &TurnRecord) -> Option<String> {
    let is_wanted = turn.outcome.is_complete() && (turn.place.is_none() || asked(turn).is_some());
    turn.request_id.clone().filter(|_| is_wanted)
}

/// The rank of a turn that nobody but this program has named.
fn asked(turn: &TurnRecord) -> Option<&Place> {
    let is_rank = |place: &&Place| matches!(place, Place::Rank(_));
    turn.place.as_ref().filter(is_rank).filter(|_| turn.place_source == Some(PlaceSource::Pin))
}

/// What the line says beyond what the reply said.
fn fill(turn: &mut TurnRecord, logged: LoggedRequest) -> Option<()> {
    let LoggedRequest { id: _, place, times } = logged;
    turn.server_times = turn.server_times.or(times);
    let place = place?;
    match asked(turn) {
        Some(asked) if *asked == place => return Some(()),
        Some(_) => turn.note(Oddity::PinIgnored),
        None => {}
    }
    turn.place = Some(place);
    turn.place_source = Some(PlaceSource::ExportFile);
    Some(())
}

/// Reads all lines that are one; how many of them `take` made use of. The last may be torn: the server still writes.
fn read_log(path: &Path, mut take: impl FnMut(LoggedRequest) -> Option<()>) -> anyhow::Result<u64> {
    let unreadable = || format!("--export-file `{}`: it cannot be read", path.display());
    let mut reader = opened(path).with_context(unreadable).exit_with(Exit::Usage)?;
    let (mut line, mut used) = (Vec::new(), 0);
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).with_context(unreadable).exit_with(Exit::Usage)? == 0 {
            return Ok(used);
        }
        used += u64::from(logged_request(&line).and_then(&mut take).is_some());
    }
}

/// The lines of a log, which those who keep many of them keep as gzip.
fn opened(path: &Path) -> std::io::Result<Box<dyn BufRead>> {
    /// How gzip begins, whatever its file is called.
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let mut reader = BufReader::new(std::fs::File::open(path)?);
    let is_gzip = reader.fill_buf()?.starts_with(&GZIP);
    Ok(if is_gzip { Box::new(BufReader::new(MultiGzDecoder::new(reader))) } else { Box::new(reader) })
}
