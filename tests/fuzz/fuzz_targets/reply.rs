//! Any bytes, whole and cut, through the turn machine: no panic, one outcome, the same record.
#![no_main]

use gspbench::client::{End, Machine};
use gspbench::record::{TurnId, TurnRecord};
use gspbench::units::Micros;
use gspbench::workload::Api;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (kind, size, bytes) = input;
    let api = [Api::Chat, Api::Completions, Api::Generate][usize::from(kind % 3)];
    let status = if kind & 0x80 == 0 { 200 } else { 500 };
    let read = |size: usize| {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let mut machine = Machine::new(api, TurnRecord::planned("r".to_owned(), id, None, Micros(0), 9));
        machine.record().status = Some(status);
        for piece in bytes.chunks(size) {
            machine.feed(piece, Micros(1));
        }
        machine.finish(End::Clean, Micros(2))
    };
    assert_eq!(read(usize::from(size).max(1)), read(usize::MAX));
});
