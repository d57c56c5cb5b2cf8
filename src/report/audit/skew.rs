//! Whether something places connections, and not turns: each kept connection is then served at one place for the whole run,
//! and the places have as much to do as they got connections.

use super::finding::{FindingKind, Judged, Verdict, finding, percent};
use crate::profile::Target;
use crate::report::ratio;
use crate::report::shape::RunReport;
use crate::units::{grouped, plural};

/// Turns of the busiest place over the mean above which the split is called skewed.
const SKEW: f64 = 1.25;
/// Turns off the main place of their connection that leave a connection pinned; twice that share of turns off the main place
/// of their group shows that groups are not what was placed.
const STRAY: f64 = 0.01;
/// Chance that sessions which were placed one by one would have left every connection at one place.
const LUCK: f64 = 0.001;

/// A policy that looks at keys, prompts or loads skews too, and on purpose. But one connection carries many keys and many
/// groups, so that such a policy sends its turns to several places; and it keeps a group where it is, on whatever connection.
/// Only where both are the other way round is it the connections that were placed.
pub(super) fn skew(report: &RunReport) -> Option<Judged> {
    // Who sends a turn to the address of its server has connections of its own to each.
    if matches!(report.manifest.target, Some(Target::Pin { .. })) {
        return None;
    }
    let kept = report.affinity.kept_connections?;
    let over_mean = report.affinity.load_max_over_mean.filter(|over_mean| *over_mean > SKEW)?;
    let placed: u64 = report.ranks.iter().map(|row| row.turns).sum();
    let busiest = report.ranks.iter().max_by_key(|row| row.turns)?;
    let share = ratio(busiest.turns, placed).filter(|share| *share < 1.0)?;
    let is_pinned = ratio(kept.off_majority_turns, kept.turns)? <= STRAY;
    let is_group_apart = ratio(report.placement.off_majority_turns?, placed)? > 2.0 * STRAY;
    let further_sessions = i32::try_from(kept.sessions.saturating_sub(kept.connections)).unwrap_or(i32::MAX);
    if !is_pinned || !is_group_apart || share.powi(further_sessions) > LUCK {
        return None;
    }
    let finding = finding(
        FindingKind::Skew,
        format!(
            "{} served {} of {} ({}), {over_mean:.2} times the mean of the places, and {} had one place each for all but {} of \
             their {}, whatever the groups of these",
            busiest.place,
            grouped(busiest.turns),
            plural(placed, "turn"),
            percent(share),
            plural(kept.connections, "kept connection"),
            grouped(kept.off_majority_turns),
            plural(kept.turns, "turn"),
        ),
        Some(format!("{SKEW} times the mean")),
        "a balancer of connections stands in between: some places idle while others queue, and all figures are those of the \
         split that these connections happened to get",
        "--connections per_turn opens a new one for each turn, so that each is placed anew; or let the balancer place requests",
    );
    Some((finding, Verdict::Valid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Place, TurnRecord};
    use crate::report::tests::{report, served};
    use crate::units::Rank;

    /// `turns` turns in 8 groups over 3 connections, each at the rank that `place` gives for its number and connection.
    fn ran(turns: u32, place: impl Fn(u32, u16) -> u16) -> RunReport {
        let turn = |n: u32| {
            let port = u16::try_from(n % 3).unwrap();
            TurnRecord {
                group: n / 3 % 8,
                place: Some(Place::Rank(Rank(place(n, port)))),
                reused_connection: Some(true),
                local_port: Some(port),
                ..served(n, n.into(), 0, 0)
            }
        };
        report(&(0..turns).map(turn).collect::<Vec<_>>())
    }

    fn found(turns: u32, place: impl Fn(u32, u16) -> u16) -> Option<String> {
        let warnings = ran(turns, place).validity.warnings;
        warnings.into_iter().find(|warning| warning.kind == FindingKind::Skew).map(|warning| warning.seen)
    }

    #[test]
    fn connections_of_one_place_each_are_found_where_they_split_the_turns_unevenly() {
        let seen = found(300, |_, port| port % 2).unwrap();
        assert!(seen.starts_with("rank 0 served 200 of 300 turns (66.667 %), 1.33 times the mean"), "{seen}");
        assert!(seen.contains("3 kept connections had one place each for all but 0 of their 300 turns"), "{seen}");
        assert_eq!(found(300, |_, port| port), None, "100 turns each");
        assert_eq!(found(12, |_, port| port % 2), None, "may be luck");
        assert_eq!(found(300, |_, _| 0), None, "no other place is known");
    }

    #[test]
    fn a_policy_that_skews_by_group_or_load_is_no_balancer_of_connections() {
        assert_eq!(found(300, |n, _| u16::from(n / 3 % 8 < 6)), None, "groups have their places");
        assert_eq!(found(300, |n, _| u16::from(n % 7 < 5)), None, "turns are placed one by one");
        assert_eq!(
            found(300, |n, port| if n % 20 == 0 { 1 - port % 2 } else { port % 2 }),
            None,
            "one in twenty strays"
        );
    }

    /// As where connections come and go with the groups that they carry.
    #[test]
    fn a_policy_that_skews_by_group_is_not_found_where_each_group_has_connections_of_its_own() {
        let mut grouped = ran(300, |_, port| port % 2);
        assert!(skew(&grouped).is_some());
        grouped.placement.off_majority_turns = Some(6);
        assert_eq!(skew(&grouped), None);
        grouped.placement.off_majority_turns = Some(7);
        assert!(skew(&grouped).is_some());
    }

    #[test]
    fn a_client_that_places_turns_itself_is_not_told_of_its_own_connections() {
        let mut pinned = ran(300, |_, port| port % 2);
        assert!(skew(&pinned).is_some());
        pinned.manifest.target = Some("pin:round_robin@http://a:1,http://b:1".parse().unwrap());
        assert_eq!(skew(&pinned), None);
    }
}
