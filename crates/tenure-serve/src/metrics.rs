//! Metrics of this instance in the OpenMetrics format, which Prometheus reads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tenure::histogram::HistogramSnapshot;
use tenure::lease::LeaseState;
use tenure::pool::PoolStatus;
use tenure::{Stats, TermHandle};

use crate::poll::ability::Ability;
use crate::poll_stats::PollStats;
use crate::service::Service;

/// Snapshot of all metrics.
#[derive(Debug)]
pub(crate) struct MetricsSnapshot {
    stats: Stats,
    poll_stats: PollStats,
    events: BTreeMap<&'static str, u64>,
    pool_status: Option<PoolStatus>,
    instances: usize,
    uncertain: usize,
    handovers: HistogramSnapshot,
    takeovers: HistogramSnapshot,
    work_failures: BTreeMap<&'static str, u64>,
    /// Whether this instance leads the role, by role.
    is_leader: BTreeMap<String, bool>,
    /// Last renewal of the last term on this instance, by role, in seconds since the epoch; kept after the term has ended.
    renewals: BTreeMap<String, f64>,
    streams: usize,
    is_able: bool,
}

impl MetricsSnapshot {
    pub(crate) async fn take(service: &Service) -> Self {
        let (pool, meters) = (service.pool(), service.pool().stats());
        let (stats, mut events) = (service.tenure().stats(), service.counters().lease_events());
        // Renewals are too many for the event stream, so they come from the histogram.
        events.insert("lease.renewed", stats.renewals.count());
        let elected = service.housekeeping().elections().map(|(role, election)| (role.to_owned(), election.term()));
        let terms: Vec<(String, Option<TermHandle>)> =
            elected.chain([(pool.reconciler_role(), pool.reconciler_term())]).collect();
        let is_uncertain = |(_, term): &&(String, Option<TermHandle>)| {
            term.as_ref().is_some_and(|term| term.state() == LeaseState::Uncertain)
        };
        let uncertain = pool.uncertain() + terms.iter().filter(is_uncertain).count();
        let is_leader = terms.iter().map(|(role, term)| (role.clone(), term.is_some())).collect();
        let last_terms = service.remember_terms(terms);
        let renewals = last_terms.into_iter().map(|(role, term)| (role, seconds(term.info().last_renewed_at)));
        Self {
            stats,
            poll_stats: service.counters().snapshot(),
            events,
            pool_status: pool.status().await,
            instances: pool.live_instances().len(),
            uncertain,
            handovers: meters.handovers.snapshot(),
            takeovers: meters.takeovers.snapshot(),
            work_failures: BTreeMap::from([
                ("error", meters.work_errors.load(Ordering::Relaxed)),
                ("panic", meters.work_panics.load(Ordering::Relaxed)),
            ]),
            is_leader,
            renewals: renewals.collect(),
            streams: service.open_streams(),
            is_able: service.ability() != Ability::Unable,
        }
    }

    pub(crate) fn into_text(self) -> String {
        let (mut registry, mut written) = (Registry::with_prefix("tenure"), String::new());
        registry.register_collector(Box::new(self));
        // Writing to a string does not fail.
        let _ = text::encode(&mut written, &registry);
        written
    }
}

impl Collector for MetricsSnapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = PrometheusEncoder(encoder);
        let stats = &self.stats;
        let connected = f64::from(u8::from(stats.connected));
        encoder.gauge("store_connected", "Whether this instance is attached to the store", connected)?;
        encoder.gauge("leases_held", "Leases held by this instance", stats.held as f64)?;
        encoder.gauge(
            "leases_uncertain",
            "Uncertain leases of this instance: renewals get no reply",
            self.uncertain as f64,
        )?;
        encoder.counters("lease_events", "Lease events of this instance, by event", "event", &self.events)?;
        encoder.histogram("renew_duration_seconds", "Time from sending a renewal to its reply", &stats.renewals)?;
        encoder.histogram(
            "handover_seconds",
            "Time from the decision to hand over a session to its new holder",
            &self.handovers,
        )?;
        encoder.histogram("takeover_seconds", "Time from noticing an unheld session to holding it", &self.takeovers)?;
        let is_leader = self.is_leader.iter().map(|(role, is_leader)| (role.as_str(), f64::from(u8::from(*is_leader))));
        encoder.gauges("leader", "Whether this instance leads the role", "role", is_leader)?;
        let renewed = self.renewals.iter().map(|(role, renewed)| (role.as_str(), *renewed));
        let help = "Time of the last renewal of the leadership; kept after its end";
        encoder.gauges("leader_last_renewal_timestamp_seconds", help, "role", renewed)?;
        encoder.gauge("fleet_instances", "Instances that are alive", self.instances as f64)?;
        if let Some(pool_status) = &self.pool_status {
            encoder.gauge("targets_unheld", "Unheld sessions known to this instance", pool_status.unheld as f64)?;
            let oldest = pool_status.longest_unheld.as_secs_f64();
            encoder.gauge("targets_unheld_oldest_seconds", "Age of the oldest unheld session", oldest)?;
            let help = "Difference between the largest and smallest number of sessions held by an instance";
            encoder.gauge("balance_spread", help, pool_status.spread() as f64)?;
        }
        let moves = self.handovers.count() + self.takeovers.count();
        let help = "Times that the worker of a session ended with an error or a panic";
        encoder.counters("work_failures", help, "outcome", &self.work_failures)?;
        encoder.counter("moves", "Sessions handed over or taken over by this instance", moves)?;
        let outcomes = BTreeMap::from([("ok", self.poll_stats.ok), ("failed", self.poll_stats.failed)]);
        encoder.counters("polls", "Polls by this instance, by outcome", "outcome", &outcomes)?;
        encoder.histogram("poll_duration_seconds", "Duration of polls", &self.poll_stats.latency)?;
        encoder.counter("publish_refused", "Results refused because their term had ended", self.poll_stats.refused)?;
        encoder.gauge(
            "keeper_lag_seconds",
            "Longest delay of a due renewal or deadline in the last 30 s",
            stats.lag.as_secs_f64(),
        )?;
        encoder.counter("events_dropped", "Events dropped because a listener was too slow", stats.events_dropped)?;
        encoder.gauge(
            "instance_able",
            "Whether this instance can poll: 0 while it hands over its sessions",
            f64::from(u8::from(self.is_able)),
        )?;
        encoder.gauge("streams_open", "Open event and result streams of this instance", self.streams as f64)
    }
}

struct PrometheusEncoder<'a>(DescriptorEncoder<'a>);

impl PrometheusEncoder<'_> {
    fn metric<'s>(&'s mut self, name: &'s str, help: &str, kind: MetricType) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        ConstGauge::new(value).encode(self.metric(name, help, MetricType::Gauge)?)
    }

    fn gauges<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'l str, f64)>,
    ) -> fmt::Result {
        let mut metric = self.metric(name, help, MetricType::Gauge)?;
        for (word, value) in values {
            ConstGauge::new(value).encode(metric.encode_family(&[(label, word)])?)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        ConstCounter::new(value).encode(self.metric(name, help, MetricType::Counter)?)
    }

    fn counters(&mut self, name: &str, help: &str, label: &str, values: &BTreeMap<&str, u64>) -> fmt::Result {
        let mut metric = self.metric(name, help, MetricType::Counter)?;
        for (word, value) in values {
            ConstCounter::new(*value).encode(metric.encode_family(&[(label, *word)])?)?;
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, spans: &HistogramSnapshot) -> fmt::Result {
        let steps: Vec<(f64, u64)> =
            spans.buckets().map(|(end, count)| (end.map_or(f64::INFINITY, |end| end.as_secs_f64()), count)).collect();
        let mut metric = self.metric(name, help, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(spans.sum().as_secs_f64(), spans.count(), &steps, None)
    }
}

fn seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
