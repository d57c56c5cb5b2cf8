//! Who served a turn, from what its reply tells: a router's header, the reply's id or fields, the rank.

use reqwest::header::HeaderMap;

use crate::record::{Oddity, Place, PlaceSource, ServerTimes, TurnRecord};
use crate::units::{Rank, public_address};
use crate::wire::frame::{self, Frame};
use crate::wire::{Spans, Worker, Workers};
use crate::workload::PlaceField;

/// Response headers that name the worker: SMG's, and that of gateways with an endpoint picker (llm-d).
const ROUTED: [&str; 2] = ["x-smg-routed-worker-id", "x-gateway-destination-endpoint-served"];

/// Longest name that is kept: an address, or the name of a pod.
const LONGEST_NAME: usize = 256;

/// Notes the worker that a router's header names; of a turn that this program placed, only another rank than it asked for.
pub(super) fn note_head(headers: &HeaderMap, record: &mut TurnRecord) {
    let worker = ROUTED.iter().find_map(|name| headers.get(*name)?.to_str().ok().and_then(named));
    let Some(worker) = worker else { return };
    if record.place.is_some() {
        if let Some(rank) = rank_behind(&worker) {
            served_by(record, rank, PlaceSource::RouterHeader);
        }
    } else {
        record.place = Some(Place::Node(worker));
        record.place_source = Some(PlaceSource::RouterHeader);
    }
}

/// The rank that SMG puts behind a worker's address.
fn rank_behind(worker: &str) -> Option<Rank> {
    worker.rsplit_once('@')?.1.parse().ok().map(Rank)
}

/// A name that may be kept: an address without its user and password, but with the rank that SMG puts behind it.
fn named(name: &str) -> Option<String> {
    let name = name.trim();
    if name.is_empty() || name.len() > LONGEST_NAME {
        return None;
    }
    Some(match name.rsplit_once('@') {
        _ if !name.contains("://") => name.to_owned(),
        Some((address, rank)) if rank.parse::<u32>().is_ok() => format!("{}@{rank}", public_address(address)),
        _ => public_address(name),
    })
}

/// What the events of a reply have said of its place.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    field: Option<PlaceField>,
    /// The rank that was asked for.
    pinned: Option<Rank>,
    rank: Option<u16>,
    workers: Option<Workers>,
    model: Option<String>,
}

impl Sightings {
    pub(super) fn of(field: Option<PlaceField>, pinned: Option<Rank>) -> Self {
        Self { field, pinned, ..Self::default() }
    }

    pub(super) fn see(&mut self, frame: &Frame<'_>) {
        self.rank = frame.dp_rank.or(self.rank);
        self.workers = frame.workers.or(self.workers);
        if self.field == Some(PlaceField::Model) && self.model.is_none() {
            self.model = frame.model.as_deref().and_then(named);
        }
    }

    /// The rank that served, whoever told it.
    fn told_rank(&self, record: &TurnRecord) -> Option<(Rank, PlaceSource)> {
        let by_router = match (&record.place, record.place_source) {
            (Some(Place::Node(worker)), Some(PlaceSource::RouterHeader)) => rank_behind(worker),
            _ => None,
        };
        let by_reply = self.rank.map(|rank| (Rank(rank), PlaceSource::MetaInfo));
        by_reply
            .or_else(|| Some((Rank(self.workers.and_then(only_rank)?), PlaceSource::WorkerId)))
            .or_else(|| Some((by_router?, PlaceSource::RouterHeader)))
    }

    /// Settles the place at the end of a reply. What the user says that names the worker beats all else but a pin, which
    /// this program chose itself; what names two nodes beats what names one; what was asked for stands where nothing is told.
    pub(super) fn settle(self, record: &mut TurnRecord) {
        let told_rank = self.told_rank(record);
        let Self { field: _, pinned, rank, workers, model } = self;
        let wide = rank.map(u32::from);
        let told = match (&record.place, record.place_source) {
            (_, Some(PlaceSource::Pin)) => {
                return told_rank.map_or((), |(rank, source)| served_by(record, rank, source));
            }
            _ if model.is_some() => model.map(|name| (Place::node(name, wide), PlaceSource::Model)),
            (Some(Place::Node(name)), Some(source)) => Some((Place::node(name.clone(), wide), source)),
            (Some(_), _) => return,
            (None, _) => workers
                .and_then(of_workers)
                .map(|place| (place, PlaceSource::WorkerId))
                .or_else(|| Some((pair_of(record.request_id.as_deref()?)?, PlaceSource::ReplyId)))
                .or_else(|| Some((Place::Rank(Rank(rank?)), PlaceSource::MetaInfo)))
                .or_else(|| Some((Place::Rank(pinned?), PlaceSource::Pin))),
        };
        if let Some((place, source)) = told {
            if pinned.zip(told_rank).is_some_and(|(asked, (told, _))| asked != told) {
                record.note(Oddity::PinIgnored);
            }
            record.place = Some(place);
            record.place_source = Some(source);
        }
    }
}

/// The server knows better than the client that asked for another rank; of a node's ranks nothing is kept where the client
/// chose the node.
fn served_by(record: &mut TurnRecord, rank: Rank, source: PlaceSource) {
    if matches!(record.place, Some(Place::Rank(asked)) if asked != rank) {
        record.note(Oddity::PinIgnored);
        record.place = Some(Place::Rank(rank));
        record.place_source = Some(source);
    }
}

/// The rank of the one worker that did both; of two, a rank that was asked for may mean either.
fn only_rank(Workers { prefill, decode }: Workers) -> Option<u16> {
    let one = prefill.xor(decode).or(decode.filter(|_| prefill == decode));
    one?.dp_rank?.try_into().ok()
}

/// One worker that did both is a node; Dynamo then names it twice, or once.
fn of_workers(Workers { prefill, decode }: Workers) -> Option<Place> {
    let name = |Worker { id, dp_rank }: Worker| match dp_rank {
        Some(rank) => format!("{id}@{rank}"),
        None => id.to_string(),
    };
    match (prefill, decode) {
        (Some(prefill), Some(decode)) if prefill.id != decode.id => {
            Some(Place::Pair { prefill: name(prefill), decode: name(decode) })
        }
        (one, other) => other.or(one).map(|worker| Place::Node(name(worker))),
    }
}

/// vLLM makes a reply's id from the request id, into which vllm-router writes both addresses under prefill/decode:
/// `chatcmpl-___prefill_addr_HOST:PORT___decode_addr_HOST:PORT_UUID`.
fn pair_of(id: &str) -> Option<Place> {
    let (_, addresses) = id.split_once("___prefill_addr_")?;
    let (prefill, rest) = addresses.split_once("___decode_addr_")?;
    let (decode, _) = rest.rsplit_once('_')?;
    Some(Place::Pair { prefill: named(prefill)?, decode: named(decode)? })
}

pub(super) fn times(spans: Spans, before: Option<ServerTimes>) -> Option<ServerTimes> {
    let Spans { intake_us, queue_us, prefill_us, return_us } = spans;
    let before = before.unwrap_or_default();
    let times = ServerTimes {
        intake_us: intake_us.or(before.intake_us),
        queue_us: queue_us.or(before.queue_us),
        prefill_us: prefill_us.or(before.prefill_us),
        return_us: return_us.or(before.return_us),
    };
    (!times.is_silent()).then_some(times)
}

/// What a line of the server's own log of requests says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRequest {
    /// The id that the server gave the request, which its reply repeated.
    pub id: String,
    /// Absent for requests that no rank served, and without data parallelism.
    pub place: Option<Place>,
    pub times: Option<ServerTimes>,
}

/// Reads a line of the log that SGLang writes with `--export-metrics-to-file`; none when it is no such line.
#[must_use]
pub fn logged_request(line: &[u8]) -> Option<LoggedRequest> {
    let frame = frame::parse_export(line).ok()?;
    Some(LoggedRequest {
        id: frame.id?.into_owned(),
        place: frame.dp_rank.map(|rank| Place::Rank(Rank(rank))),
        times: times(frame.spans, None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TurnId;
    use crate::units::Micros;

    fn turn() -> TurnRecord {
        TurnRecord::planned("t".into(), TurnId { group: 0, session: 0, turn: 0 }, None, Micros(0), 1)
    }

    fn node(name: &str) -> Option<Place> {
        Some(Place::Node(name.into()))
    }

    fn settled(record: TurnRecord, field: Option<PlaceField>, frame: &Frame<'_>) -> TurnRecord {
        settled_asking(None, record, field, frame)
    }

    /// Of a run that asks for this rank.
    fn settled_asking(
        rank: Option<u16>,
        mut record: TurnRecord,
        field: Option<PlaceField>,
        frame: &Frame<'_>,
    ) -> TurnRecord {
        let mut sightings = Sightings::of(field, rank.map(Rank));
        sightings.see(frame);
        sightings.settle(&mut record);
        record
    }

    fn routed(name: &'static str, value: &'static str) -> TurnRecord {
        let (mut headers, mut record) = (HeaderMap::new(), turn());
        headers.insert(name, value.parse().unwrap());
        note_head(&headers, &mut record);
        record
    }

    #[test]
    fn a_routers_header_names_the_worker_and_the_reply_its_rank() {
        let with_rank = Frame { dp_rank: Some(3), ..Frame::default() };
        for name in ROUTED {
            let record = settled(routed(name, "http://w:1"), None, &Frame::default());
            assert_eq!((record.place, record.place_source), (node("http://w:1"), Some(PlaceSource::RouterHeader)));
        }
        assert_eq!(settled(routed(ROUTED[0], "http://w:1"), None, &with_rank).place, node("http://w:1@3"));
        assert_eq!(settled(routed(ROUTED[0], "http://w:1@5"), None, &with_rank).place, node("http://w:1@5"));
        assert_eq!(routed("x-request-id", "http://w:1").place, None);
        assert_eq!(routed(ROUTED[0], " ").place, None);
        assert_eq!(routed(ROUTED[0], "http://user:secret@w:1").place, node("http://w:1"));
    }

    #[test]
    fn a_pin_stays_and_the_field_that_the_user_names_beats_the_rest() {
        let told = Frame { dp_rank: Some(1), model: Some("w1".into()), ..Frame::default() };
        let pinned = TurnRecord {
            place: Some(Place::Rank(Rank(0))),
            place_source: Some(PlaceSource::Pin),
            ..routed(ROUTED[0], "http://w:1")
        };
        let obeyed = Frame { dp_rank: Some(0), ..Frame { model: Some("w1".into()), ..Frame::default() } };
        assert_eq!(settled(pinned.clone(), Some(PlaceField::Model), &obeyed).place, Some(Place::Rank(Rank(0))));
        let ignored = settled(pinned, Some(PlaceField::Model), &told);
        assert_eq!((ignored.place, &*ignored.oddities), (Some(Place::Rank(Rank(1))), &[Oddity::PinIgnored][..]));
        let record = settled(routed(ROUTED[0], "http://w:1"), Some(PlaceField::Model), &told);
        assert_eq!((record.place, record.place_source), (node("w1@1"), Some(PlaceSource::Model)));
        assert_eq!(settled(turn(), None, &told).place, Some(Place::Rank(Rank(1))), "a model is no place by itself");
    }

    #[test]
    fn the_rank_that_was_asked_for_stands_where_the_reply_names_none() {
        let record = settled_asking(Some(9), turn(), None, &Frame::default());
        assert_eq!((record.place, record.place_source), (Some(Place::Rank(Rank(9))), Some(PlaceSource::Pin)));
        let told = Frame { dp_rank: Some(3), ..Frame::default() };
        let record = settled_asking(Some(9), turn(), None, &told);
        assert_eq!((record.place, record.place_source), (Some(Place::Rank(Rank(3))), Some(PlaceSource::MetaInfo)));
    }

    /// Whatever tells it: the reply's rank, Dynamo's worker, a router's header; and for a pin of one turn or of the whole run.
    #[test]
    fn another_rank_than_was_asked_for_is_the_place_and_is_noted() {
        let of_worker = |decode: u32| {
            let worker = |dp_rank| Some(Worker { id: 7, dp_rank: Some(dp_rank) });
            Frame { workers: Some(Workers { prefill: worker(1), decode: worker(decode) }), ..Frame::default() }
        };
        let of_rank = Frame { dp_rank: Some(1), ..Frame::default() };
        let pin = |rank, mut record: TurnRecord, worker: Option<&'static str>| {
            record.place = Some(Place::Rank(Rank(rank)));
            record.place_source = Some(PlaceSource::Pin);
            let headers = worker.map(|worker| (ROUTED[0].parse().unwrap(), worker.parse().unwrap()));
            note_head(&HeaderMap::from_iter(headers), &mut record);
            record
        };
        let header = |worker| (Frame::default(), Some(worker));
        let told = [
            ((of_rank, None), PlaceSource::MetaInfo),
            ((of_worker(1), None), PlaceSource::WorkerId),
            (header("http://w:1@1"), PlaceSource::RouterHeader),
        ];
        for ((frame, worker), source) in &told {
            let heeded = settled(pin(1, turn(), *worker), None, frame);
            assert_eq!((heeded.place_source, &*heeded.oddities), (Some(PlaceSource::Pin), &[][..]));
            let ignored = settled(pin(0, turn(), *worker), None, frame);
            assert_eq!((ignored.place, ignored.place_source), (Some(Place::Rank(Rank(1))), Some(*source)));
            assert_eq!(ignored.oddities, [Oddity::PinIgnored]);
        }
        for (frame, worker) in [(of_worker(2), None), header("http://w:1")] {
            let silent = settled(pin(0, turn(), worker), None, &frame);
            assert_eq!((silent.place, silent.oddities), (Some(Place::Rank(Rank(0))), vec![]), "no rank is told");
        }
        let of_run = |rank, (frame, worker): &(Frame<'_>, Option<&'static str>)| {
            let record = worker.map_or_else(turn, |worker| routed(ROUTED[0], worker));
            settled_asking(Some(rank), record, None, frame).oddities
        };
        for (reply, _) in &told {
            assert_eq!((of_run(1, reply), of_run(0, reply)), (vec![], vec![Oddity::PinIgnored]));
        }
    }

    #[test]
    fn the_id_of_vllm_router_names_both_nodes() {
        let of = |id: &str| {
            let record = TurnRecord { request_id: Some(id.into()), ..turn() };
            settled(record, None, &Frame::default())
        };
        let record = of("cmpl-___prefill_addr_10.0.0.1:8100___decode_addr_pod_2:8200_f00d-1");
        let pair = Place::Pair { prefill: "10.0.0.1:8100".into(), decode: "pod_2:8200".into() };
        assert_eq!((record.place, record.place_source), (Some(pair), Some(PlaceSource::ReplyId)));
        for id in ["chatcmpl-1", "cmpl-___prefill_addr_a", "cmpl-___prefill_addr____decode_addr__x"] {
            assert_eq!(of(id).place, None, "{id}");
        }
    }

    #[test]
    fn dynamo_names_a_pair_or_one_worker_by_ids_of_64_bits() {
        let of = |worker_id: &str| {
            let data =
                format!(r#"{{"choices":[],"nvext":{{"worker_id":{worker_id},"timing":{{"prefill_time_ms":2.5}}}}}}"#);
            let frame = frame::parse_openai(data.as_bytes()).unwrap();
            assert_eq!(times(frame.spans, None).unwrap().prefill_us, Some(2_500));
            settled(turn(), None, &frame).place
        };
        let id = 11_782_138_588_702_669_284_u64;
        let pair = format!(r#"{{"prefill_worker_id":{id},"prefill_dp_rank":1,"decode_worker_id":7}}"#);
        assert_eq!(of(&pair), Some(Place::Pair { prefill: format!("{id}@1"), decode: "7".into() }));
        let same = format!(r#"{{"prefill_worker_id":{id},"decode_worker_id":{id},"decode_dp_rank":0}}"#);
        assert_eq!(of(&same), node(&format!("{id}@0")));
        assert_eq!(of(r#"{"decode_worker_id":7}"#), node("7"));
        assert_eq!(of("{}"), None);
    }

    #[test]
    fn a_line_of_the_servers_log_gives_id_rank_and_spans() {
        let line = br#"{"request_parameters":"{\"rid\":null}","id":"r1","finish_reason":{"type":"length","length":4},"prompt_tokens":9,"queue_time":0.002,"cached_tokens":8,"dp_rank":1,"forward_entry_time":10.5,"prefill_finished_time":10.75}"#;
        let logged = logged_request(line).unwrap();
        assert_eq!((&*logged.id, logged.place), ("r1", Some(Place::Rank(Rank(1)))));
        let times = logged.times.unwrap();
        assert_eq!((times.queue_us, times.prefill_us, times.return_us), (Some(2_000), Some(250_000), None));
        assert_eq!(logged_request(br#"{"request_parameters":"{}","id":"r2"}"#).unwrap().place, None);
        assert_eq!(logged_request(b"{\"id\":\"r1\",\"dp_ra"), None);
    }
}
