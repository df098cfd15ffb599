//! The output of `--print-metrics`, in the layout of Kafka's `ToolsUtils.printMetrics`.

use super::java::fixed;

/// Returns one line per metric, sorted by name and with aligned values. A blank line and a heading come first.
pub fn metrics_lines(metrics: &[(String, f64)]) -> String {
    let mut sorted: Vec<_> = metrics.iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    let width = sorted.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let heading = format!("\n{:<width$}   Value", "Metric Name");
    let lines = sorted.iter().map(|(name, value)| format!("{name:<width$} : {}", fixed(*value, 3)));
    std::iter::once(heading).chain(lines).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::metrics_lines;

    /// The test uses two of the lines that Kafka 4.3.1 printed.
    #[test]
    fn the_layout_is_kafkas() {
        let name = |name: &str| format!("producer-metrics:{name}:{{client-id=perf-producer-client}}");
        let text = metrics_lines(&[(name("batch-size-max"), 16277.0), (name("batch-size-avg"), 14667.133)]);
        let expected = "\nMetric Name                                                        Value\n\
            producer-metrics:batch-size-avg:{client-id=perf-producer-client} : 14667.133\n\
            producer-metrics:batch-size-max:{client-id=perf-producer-client} : 16277.000";
        assert_eq!(text, expected);
    }
}
