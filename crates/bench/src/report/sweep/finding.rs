//! Describes the main results of a sweep in sentences.
//!
//! Invariant: each number is also in the report's table.

use super::{grouped, number, ratio};
use crate::sweep::{PointResult, Results, metric};

/// Returns sentences that name each target's points with the most throughput and with the lowest p99, and compare the
/// targets. Returns an empty text if nothing was measured.
pub fn finding(results: &Results, points: &[PointResult]) -> String {
    let targets = 0..results.plan.targets.len();
    let of_targets = targets.clone().filter_map(|target| of_target(results, points, target));
    let compared = targets.skip(1).filter_map(|target| compared(results, points, target));
    of_targets.chain(compared).collect::<Vec<_>>().join(" ")
}

fn of_target(results: &Results, points: &[PointResult], target: usize) -> Option<String> {
    let measured = || points.iter().filter(|point| point.target == target);
    let figure = |point: &PointResult, index: usize| point.median(index).unwrap_or(f64::NAN);
    let fastest = measured()
        .filter(|point| point.median(metric::RECORDS_PER_SEC).is_some())
        .max_by(|one, other| figure(one, metric::RECORDS_PER_SEC).total_cmp(&figure(other, metric::RECORDS_PER_SEC)))?;
    let soonest = measured()
        .filter(|point| point.median(metric::P99).is_some())
        .min_by(|one, other| figure(one, metric::P99).total_cmp(&figure(other, metric::P99)))?;
    let described = |point: &PointResult| {
        let (rate, p99) = (figure(point, metric::RECORDS_PER_SEC), figure(point, metric::P99));
        format!("{} records/s with p99 {} ms", grouped(&number(rate)), grouped(&number(p99)))
    };
    let (name, most) = (&results.plan.targets[target].name, results.plan.label(&fastest.point));
    if std::ptr::eq(fastest, soonest) {
        return Some(format!("{name} has most throughput and the lowest p99 at {most}: {}.", described(fastest)));
    }
    let least = results.plan.label(&soonest.point);
    let (fast, soon) = (described(fastest), described(soonest));
    Some(format!("{name} has most throughput at {most}: {fast}; the lowest p99 at {least}: {soon}."))
}

/// Compares a target with the first one at the points that both have. Returns `None` if there are no such points.
fn compared(results: &Results, points: &[PointResult], target: usize) -> Option<String> {
    let ratios = results.ratios_to_first(points);
    let own = points.iter().zip(ratios).filter(|(point, _)| point.target == target);
    let found: Vec<f64> = own.filter_map(|(_, ratio)| ratio).collect();
    let (least, most) = (found.iter().copied().reduce(f64::min)?, found.iter().copied().reduce(f64::max)?);
    let (name, first) = (&results.plan.targets[target].name, &results.plan.targets[0].name);
    let times = if ratio(least) == ratio(most) { ratio(most) } else { format!("{} to {}", ratio(least), ratio(most)) };
    Some(format!("At equal points {name} has {times} times the throughput of {first}."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::sample_results;

    #[test]
    fn sweep_is_over_best_points_are_named_with_their_figures() {
        let results = sample_results();
        let points = results.points();
        let reported = finding(&results, &points);
        let best = points
            .iter()
            .filter(|point| point.target == 0)
            .filter_map(|point| point.median(metric::RECORDS_PER_SEC))
            .fold(0.0, f64::max);
        assert!(reported.contains(&format!("{} records/s with p99 ", grouped(&number(best)))), "{reported}");
        assert_eq!(reported.matches(" has most throughput ").count(), 2, "{reported}");
        assert_eq!(reported.matches("At equal points ").count(), 1, "{reported}");
        assert_eq!(finding(&results, &[]), "");
    }
}
