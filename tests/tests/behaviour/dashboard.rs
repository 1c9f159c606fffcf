//! The dashboard for Grafana and the rules of alerts that are installed with the daemon: a broker serves the metrics that they name, and a real
//! Prometheus, which scrapes a broker with a client at work, has data for each panel.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tests::broker::Broker;
use tests::clients;
use tests::daemon::eventually;
use tests::guest::PATIENCE;
use tests::packages::{PackageRoot, Suite};
use tests::port::free_port;
use tests::program::{Background, LIMIT, succeed};
use tests::sources::repository;

const DASHBOARD: &str = "daemon/packaging/grafana/vhost-user-vulkan.json";
const RULES: &str = "daemon/packaging/prometheus/vhost-user-vulkan.rules.yml";

/// The beginning of the names of all metrics of the daemon.
const PREFIX: &str = "vhost_user_vulkan_";
/// Labels that Prometheus adds.
const ADDED: [&str; 2] = ["instance", "job"];

fn dashboard() -> Result<Value> {
    Ok(serde_json::from_str(&fs::read_to_string(repository().join(DASHBOARD))?)?)
}

/// An expression of a panel, and how its data are labelled.
struct Query {
    panel: String,
    expression: String,
    legend: String,
}

fn queries() -> Result<Vec<Query>> {
    let dashboard = dashboard()?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a text");
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().context("panels")? {
        for target in panel["targets"].as_array().context("targets")? {
            let (panel, expression) = (text(&panel["title"])?, text(&target["expr"])?);
            queries.push(Query { panel, expression, legend: text(&target["legendFormat"])? });
        }
    }
    ensure!(queries.len() >= 10, "{} expressions", queries.len());
    Ok(queries)
}

fn alerts() -> Result<Vec<String>> {
    let rules = fs::read_to_string(repository().join(RULES))?;
    let expressions: Vec<_> =
        rules.lines().filter_map(|line| Some(line.trim().strip_prefix("expr: ")?.to_owned())).collect();
    ensure!(
        expressions.len() == rules.matches("- alert: ").count(),
        "an alert has no expression of one line"
    );
    Ok(expressions)
}

/// The metrics that a broker serves, with their labels.
fn served(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut metrics = BTreeMap::<String, BTreeSet<String>>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.split("} ").next().unwrap_or_default());
        let labels = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        metrics.entry(name.to_owned()).or_default().extend(labels);
    }
    metrics
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The metrics that an expression names, with the labels by which it selects.
fn named(expression: &str) -> Vec<(&str, Vec<&str>)> {
    let starts = expression.match_indices(PREFIX);
    let named = starts.map(|(at, _)| {
        let rest = &expression[at..];
        let (name, behind) = rest.split_at(rest.find(|c| !is_of_name(c)).unwrap_or(rest.len()));
        let selected = behind.strip_prefix('{').and_then(|behind| Some(behind.split_once('}')?.0));
        let labels = selected
            .into_iter()
            .flat_map(|all| all.split(','))
            .filter_map(|one| one.split(['=', '!']).next());
        (name, labels.map(str::trim).collect())
    });
    named.collect()
}

/// The labels by which an expression groups and joins.
fn grouped(expression: &str) -> Vec<&str> {
    let words = ["by", "on", "group_left", "ignoring", "without"];
    let mut labels = Vec::new();
    for (at, _) in expression.match_indices('(') {
        let before = expression[..at].trim_end();
        let word = before.rsplit(|c| !is_of_name(c)).next().unwrap_or_default();
        if words.contains(&word) {
            let inside = expression[at + 1..].split(')').next().unwrap_or_default();
            labels.extend(inside.split(',').map(str::trim).filter(|label| !label.is_empty()));
        }
    }
    labels
}

/// The labels that a legend or an annotation shows, each between `{{` and `}}`.
fn shown(text: &str) -> Vec<&str> {
    text.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.trim())).collect()
}

/// A broker of two VMs with bounds, with its metrics at this port.
fn broker(port: u16) -> Result<Broker> {
    let keys = "device-memory = \"1GiB\"\nhost-memory = \"2GiB\"";
    Broker::start(&format!("metrics = \"127.0.0.1:{port}\""), &[("a", keys), ("b", keys)])
}

#[test]
fn what_expressions_name_is_served() -> Result<()> {
    let port = free_port()?;
    let broker = broker(port)?;
    let text = broker.metrics(port)?;
    let metrics = served(&text);
    let known: BTreeSet<&str> = metrics.values().flatten().map(String::as_str).chain(ADDED).collect();
    let of_panels = queries()?.into_iter().map(|query| (query.expression, query.legend));
    let mut used = BTreeSet::new();
    for (expression, legend) in of_panels.chain(alerts()?.into_iter().map(|alert| (alert, String::new()))) {
        let named = named(&expression);
        ensure!(!named.is_empty(), "{expression} names no metric");
        for (name, labels) in named {
            let has =
                metrics.get(name).with_context(|| format!("{name} is not served: {expression}\n{text}"))?;
            for label in labels {
                ensure!(has.contains(label), "{name} has no label {label}: {expression}");
            }
            used.insert(name.to_owned());
        }
        for label in grouped(&expression).into_iter().chain(shown(&legend)) {
            ensure!(known.contains(label), "nothing has a label {label}: {expression}, {legend}");
        }
    }
    let unused: Vec<_> =
        metrics.keys().filter(|name| name.starts_with(PREFIX) && !used.contains(*name)).collect();
    ensure!(unused.is_empty(), "no panel shows {unused:?}");
    // The page about metrics lists all of them.
    let page = fs::read_to_string(repository().join("docs/metrics.md"))?;
    for (name, labels) in metrics.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.with_context(|| format!("docs/metrics.md does not list {name}"))?;
        ensure!(labels.iter().all(|label| row.contains(&format!("`{label}`"))), "{row}: {labels:?}");
    }
    Ok(())
}

#[test]
fn the_dashboard_lets_choose_where_its_data_come_from() -> Result<()> {
    let dashboard = dashboard()?;
    let variables = dashboard["templating"]["list"].as_array().context("variables")?;
    let source =
        variables.iter().find(|variable| variable["type"] == "datasource").context("a data source")?;
    assert_eq!((&source["name"], &source["query"]), (&"datasource".into(), &"prometheus".into()));
    let uses = |value: &Value| value["datasource"]["uid"] == "${datasource}";
    let mut ids = BTreeSet::new();
    let mut places = BTreeSet::new();
    for panel in dashboard["panels"].as_array().context("panels")? {
        ensure!(
            uses(panel) && panel["targets"].as_array().is_some_and(|all| all.iter().all(uses)),
            "{panel}"
        );
        ensure!(ids.insert(panel["id"].as_u64()), "two panels have an id: {panel}");
        let at = |key: &str| panel["gridPos"][key].as_u64().with_context(|| format!("{key} of {panel}"));
        for (x, y) in (0..at("w")?).flat_map(|x| (0..8).map(move |y| (x, y))) {
            ensure!(places.insert((at("x")? + x, at("y")? + y)), "panels overlap: {panel}");
        }
        ensure!(at("x")? + at("w")? <= 24, "wider than Grafana's grid: {panel}");
        ensure!(
            panel["description"].as_str().is_some_and(|text| !text.is_empty()),
            "no description: {panel}"
        );
    }
    Ok(())
}

/// A Prometheus that scrapes a broker once a second. Dropping it ends it.
struct Prometheus {
    port: u16,
    _server: Background,
    _folder: TempDir,
}

fn package() -> Result<PackageRoot> {
    PackageRoot::with(Suite::Testing, &["prometheus"])
}

impl Prometheus {
    fn start(root: &PackageRoot, metrics: u16) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (config, port) = (folder.path().join("prometheus.yml"), free_port()?);
        let rules = repository().join(RULES);
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{:?}]\nscrape_configs:\n\
                 - job_name: vhost-user-vulkan\n  static_configs: [{{targets: [\"127.0.0.1:{metrics}\"]}}]\n",
                rules.display().to_string()
            ),
        )?;
        let mut command = root.command("prometheus")?;
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        Ok(Self { port, _server: Background::start(command)?, _folder: folder })
    }

    /// The answer of Prometheus's interface for programs at a path.
    fn ask(&self, path: &str) -> Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // The answer to a request of HTTP 1.0 comes in one piece.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
        serde_json::from_str(body).with_context(|| body.to_owned())
    }

    /// The series that an expression has now.
    fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.ask(&format!("/api/v1/query?query={encoded}"))?;
        ensure!(answer["status"] == "success", "{expression}: {answer}");
        answer["data"]["result"].as_array().cloned().context("a list of series")
    }
}

/// The expression as Grafana would send it, for all VMs and a time that a test has.
fn as_sent(expression: &str) -> String {
    let values = [("$__rate_interval", "10s"), ("$__range", "1m"), ("[5m]", "[10s]"), ("$vm", ".+")];
    values.iter().fold(expression.to_owned(), |text, (variable, value)| text.replace(variable, value))
}

#[test]
fn prometheus_has_data_for_each_panel_while_a_client_works() -> Result<()> {
    let root = package()?;
    let port = free_port()?;
    let broker = broker(port)?;
    let (_bridge, socket) = broker.bridge("a")?;
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let _client = Background::start(clients::computing(executable, &socket, "100000000")?)?;
    let prometheus = Prometheus::start(&root, port)?;
    let computes = format!("rate({PREFIX}submissions_total{{vm=\"a\"}}[10s]) > 0");
    let scraped = || prometheus.query(&computes).is_ok_and(|series| !series.is_empty());
    ensure!(eventually(LIMIT, scraped), "the client's work is not seen\n{}", broker.log());
    for Query { panel, expression, legend } in queries()? {
        let value = |one: &Value| one["value"][1].as_str().and_then(|number| number.parse::<f64>().ok());
        let is_finite = |one: &Value| value(one).is_some_and(f64::is_finite);
        let mut series = Vec::new();
        // If the machine stands still, there is no data of the last seconds.
        let has_data = eventually(PATIENCE, || {
            series = prometheus.query(&as_sent(&expression)).unwrap_or_default();
            !series.is_empty() && series.iter().all(is_finite)
        });
        ensure!(has_data, "{panel} has no data: {expression}: {series:?}");
        for one in &series {
            for label in shown(&legend) {
                ensure!(one["metric"][label].is_string(), "{panel}: the legend's {label} is missing: {one}");
            }
        }
        println!("{panel}: {} series, the first {}", series.len(), series[0]);
    }
    // The measurements reach the metrics of a VM: the client keeps the GPU busy.
    let computes = format!("rate({PREFIX}gpu_seconds_total{{vm=\"a\",queue=\"compute\"}}[10s]) > 0");
    let busy = || prometheus.query(&computes).is_ok_and(|series| !series.is_empty());
    ensure!(eventually(PATIENCE, busy), "no GPU time");
    // The rules are loaded, each without an error.
    let rules = prometheus.ask("/api/v1/rules")?;
    let of_group = rules["data"]["groups"][0]["rules"].as_array().context("rules")?;
    assert_eq!(of_group.len(), alerts()?.len());
    ensure!(of_group.iter().all(|rule| rule["health"] != "err"), "{rules}");
    Ok(())
}

#[test]
fn the_rules_are_without_fault() -> Result<()> {
    let mut command = package()?.command("promtool")?;
    let rules: PathBuf = repository().join(RULES);
    command.args(["check", "rules"]).arg(&rules);
    let said = succeed(command, LIMIT)?;
    ensure!(said.contains("SUCCESS"), "{said}");
    Ok(())
}
