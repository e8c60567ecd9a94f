use rust_rocksdb::{
    ColumnFamilyDescriptor, DB, DBCompactionStyle, FifoCompactOptions, Options, WriteBatch, WriteOptions,
};
use std::time::Instant;

fn cpu() -> u64 {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .map(|task| {
            std::fs::read_to_string(task.path().join("schedstat"))
                .ok()
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .unwrap_or(0)
        })
        .sum()
}

fn run(mode: u8, puts: u64) -> f64 {
    let directory = tempfile::tempdir_in("/work/td").unwrap();
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_write_buffer_size(4 << 20);
    options.set_max_write_buffer_number(8);
    options.set_min_write_buffer_number_to_merge(3);
    options.set_memtable_prefix_bloom_ratio(0.05);
    options.set_memtable_whole_key_filtering(true);
    options.set_allow_concurrent_memtable_write(false);
    options.set_level_zero_file_num_compaction_trigger(10);
    options.set_max_background_jobs(2);
    if mode == 1 {
        options.set_wal_ttl_seconds(1 << 31);
    }
    let mut feed = Options::default();
    feed.set_write_buffer_size(4 << 20);
    feed.set_max_write_buffer_number(8);
    feed.set_compaction_style(DBCompactionStyle::Fifo);
    let mut fifo = FifoCompactOptions::default();
    fifo.set_max_table_files_size(256 << 20);
    feed.set_fifo_compaction_options(&fifo);
    let mut cfs = vec![ColumnFamilyDescriptor::new("default", options.clone())];
    if mode >= 2 {
        cfs.push(ColumnFamilyDescriptor::new("feed", feed));
    }
    let db = DB::open_cf_descriptors(&options, directory.path(), cfs).unwrap();
    let cf = db.cf_handle("feed");
    let mut random = 88_172_645_463_325_252_u64;
    let value = [b'v'; 110];
    let before = cpu();
    let mut version = 0_u64;
    let mut batch = WriteBatch::new();
    while version < puts {
        batch.clear();
        for _ in 0..8 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            version += 1;
            let key = format!("k{}", random % 2_000_000);
            batch.put(&key, value);
            if let Some(cf) = cf {
                if mode == 2 {
                    batch.put_cf(cf, version.to_be_bytes(), [&[1], key.as_bytes()].concat());
                } else {
                    batch.put_cf(cf, version.to_be_bytes(), [&[1], key.as_bytes(), &value].concat());
                }
            }
        }
        db.write_opt(&batch, &WriteOptions::default()).unwrap();
    }
    (cpu() - before) as f64 / puts as f64 / 1e3
}

#[test]
fn measure() {
    let Ok(_) = std::env::var("MEASURE") else { return };
    let began = Instant::now();
    for round in 0..6 {
        let mut line = String::new();
        for mode in 0..4 {
            line += &format!(" {mode}: {:.2} us/put", run((mode + round) % 4, 400_000))
                .replace(&format!(" {mode}:"), &format!(" {}:", (mode + round) % 4));
        }
        println!("{line} {:?}", began.elapsed());
    }
}
