//! What this instance counts, as OpenMetrics writes it, which Prometheus reads.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tenure::lease::LeaseState;
use tenure::meter::Spans;
use tenure::pool::Overview;
use tenure::{HowItStands, TermHandle};

use crate::poll::ability::Ability;
use crate::service::Service;
use crate::tally::Tally;

/// All numbers at one moment.
#[derive(Debug)]
pub(crate) struct Reading {
    stands: HowItStands,
    tally: Tally,
    events: BTreeMap<&'static str, u64>,
    overview: Option<Overview>,
    instances: usize,
    uncertain: usize,
    handovers: Spans,
    takeovers: Spans,
    /// By role: whether this instance leads it.
    leads: BTreeMap<String, bool>,
    /// By role: when its last term here was last renewed, in seconds since the epoch; also after its end.
    renewals: BTreeMap<String, f64>,
    streams: usize,
    able: bool,
}

impl Reading {
    pub(crate) async fn take(service: &Service) -> Self {
        let (pool, meters) = (service.pool(), service.pool().meters());
        let (stands, mut events) = (service.tenure().how_it_stands(), service.counts().events());
        // These are so many that they are told to nobody who need not hear of them.
        events.insert("lease.renewed", stands.renewals.count());
        let elected = service.housekeeping().elections().map(|(role, election)| (role.to_owned(), election.term()));
        let terms: Vec<(String, Option<TermHandle>)> =
            elected.chain([(pool.scout_role(), pool.scout_term())]).collect();
        let doubts = |(_, term): &&(String, Option<TermHandle>)| {
            term.as_ref().is_some_and(|term| term.state() == LeaseState::Uncertain)
        };
        let uncertain = pool.uncertain() + terms.iter().filter(doubts).count();
        let leads = terms.iter().map(|(role, term)| (role.clone(), term.is_some())).collect();
        let last_terms = service.remember_terms(terms);
        let renewals = last_terms.into_iter().map(|(role, term)| (role, seconds(term.info().last_renewed_at)));
        Self {
            stands,
            tally: service.counts().read(),
            events,
            overview: pool.overview().await,
            instances: pool.live_instances().len(),
            uncertain,
            handovers: meters.handovers.read(),
            takeovers: meters.takeovers.read(),
            leads,
            renewals: renewals.collect(),
            streams: service.open_streams(),
            able: service.ability() != Ability::Unable,
        }
    }

    pub(crate) fn written(self) -> String {
        let (mut registry, mut written) = (Registry::with_prefix("tenure"), String::new());
        registry.register_collector(Box::new(self));
        // Writing to a string does not fail.
        let _ = text::encode(&mut written, &registry);
        written
    }
}

impl Collector for Reading {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let stands = &self.stands;
        page.gauge("leases_held", "Leases that this instance holds", stands.held as f64)?;
        page.gauge("leases_uncertain", "Leases that this instance holds and is not certain of", self.uncertain as f64)?;
        page.counters("lease_events", "What has happened to its leases", "event", &self.events)?;
        page.spans("renew_duration_seconds", "From sending a renewal to its answer", &stands.renewals)?;
        page.spans("handover_seconds", "From deciding to give a session away until it is another's", &self.handovers)?;
        page.spans("takeover_seconds", "From missing a holder until its session is this instance's", &self.takeovers)?;
        let leads = self.leads.iter().map(|(role, leads)| (role.as_str(), f64::from(u8::from(*leads))));
        page.gauges("leader", "Whether it leads a role", "role", leads)?;
        let renewed = self.renewals.iter().map(|(role, renewed)| (role.as_str(), *renewed));
        let help = "When its leadership was last renewed; also after its end";
        page.gauges("leader_last_renewal_timestamp_seconds", help, "role", renewed)?;
        page.gauge("fleet_instances", "Instances that count as alive", self.instances as f64)?;
        if let Some(overview) = &self.overview {
            page.gauge("targets_unheld", "Sessions that nobody holds, as far as it knows", overview.unheld as f64)?;
            let oldest = overview.longest_unheld.as_secs_f64();
            page.gauge("targets_unheld_oldest_seconds", "For how long nobody has held the first of them", oldest)?;
            let help = "How many more sessions whoever holds most has than whoever holds least";
            page.gauge("balance_spread", help, overview.spread() as f64)?;
        }
        let moves = self.handovers.count() + self.takeovers.count();
        page.counter("moves", "Sessions that it has handed over or taken over", moves)?;
        let outcomes = BTreeMap::from([("ok", self.tally.ok), ("failed", self.tally.failed)]);
        page.counters("polls", "Its polls, by how they went", "outcome", &outcomes)?;
        page.spans("poll_duration_seconds", "How long its polls took", &self.tally.latency)?;
        page.counter("publish_refused", "Results that were refused because their term was over", self.tally.refused)?;
        page.gauge(
            "keeper_lag_seconds",
            "Longest delay of a due renewal or deadline in the last half minute",
            stands.lag.as_secs_f64(),
        )?;
        page.counter("events_dropped", "Events that nobody took in time", stands.events_dropped)?;
        page.gauge(
            "instance_able",
            "Whether it can poll: 0 while it gives its sessions away",
            f64::from(u8::from(self.able)),
        )?;
        page.gauge("streams_open", "Streams that are read from it", self.streams as f64)
    }
}

struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
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

    fn spans(&mut self, name: &str, help: &str, spans: &Spans) -> fmt::Result {
        let steps: Vec<(f64, u64)> =
            spans.steps().map(|(end, count)| (end.map_or(f64::INFINITY, |end| end.as_secs_f64()), count)).collect();
        let mut metric = self.metric(name, help, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(spans.sum().as_secs_f64(), spans.count(), &steps, None)
    }
}

fn seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
