use clap::CommandFactory as _;

use super::*;

fn serve(arguments: &[&str]) -> ServeArgs {
    let all = ["klad", "serve"].into_iter().chain(arguments.iter().copied());
    let Command::Serve(args) = Cli::try_parse_from(all).expect("valid").command else { panic!("not serve") };
    *args
}

#[test]
fn the_definition_holds_together() {
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_those_of_limits() {
    let args = serve(&[]);
    assert_eq!(args.async_sync_interval, limits::ASYNC_SYNC_INTERVAL);
    assert_eq!(args.head_timeout, limits::HEAD_TIMEOUT);
    assert_eq!(args.body_timeout, limits::BODY_TIMEOUT);
    assert_eq!(args.write_timeout, limits::WRITE_TIMEOUT);
    assert_eq!(args.idle_timeout, limits::IDLE_TIMEOUT);
    assert_eq!(args.queue_target, limits::QUEUE_TARGET);
    assert_eq!(args.queue_age_max, limits::QUEUE_AGE_MAX);
    assert_eq!(args.iteration_max, limits::ITERATION_MAX);
    assert_eq!(args.drain_timeout, limits::DRAIN_TIMEOUT);
    assert_eq!(args.disk_reserve.0, limits::DISK_RESERVE_BYTES);
    assert_eq!(args.key_max.0, limits::KEY_BYTES_MAX);
    assert_eq!(args.value_max.0, limits::VALUE_BYTES_MAX);
    assert_eq!(args.head_max.0, limits::HEAD_BYTES_MAX);
    assert_eq!(args.body_rate_min.0, limits::BODY_RATE_BYTES_MIN);
    assert_eq!(args.slow_request, limits::SLOW_REQUEST);
    assert_eq!(args.heap_sample.0, limits::HEAP_SAMPLE_BYTES);
}

#[test]
fn durations_have_limits() {
    for (valid, invalid) in [
        (["--changes-heartbeat", "15s"], ["--changes-heartbeat", "15001ms"]),
        (["--changes-heartbeat", "1ms"], ["--changes-heartbeat", "0s"]),
        (["--commit-delay", "100ms"], ["--commit-delay", "101ms"]),
    ] {
        serve(&valid);
        let error = Cli::try_parse_from(["klad", "serve"].into_iter().chain(invalid)).expect_err("rejected");
        assert!(error.to_string().contains(invalid[1]), "{error}");
    }
}

#[test]
fn sizes_have_units() {
    let args = serve(&["--memory", "1GiB", "--value-max", "64KiB"]);
    assert_eq!(args.memory, Some(ByteSize(1 << 30)));
    assert_eq!(args.value_max, ByteSize(64 << 10));
}
