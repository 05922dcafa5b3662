BEGIN TRANSACTION;
CREATE TABLE runs (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	stage VARCHAR NOT NULL, 
	progress DOUBLE, 
	message VARCHAR NOT NULL, 
	created_utc VARCHAR NOT NULL, 
	t_origin_s DOUBLE, 
	training_since_s DOUBLE, 
	config JSON NOT NULL, 
	environment JSON NOT NULL, 
	facts JSON NOT NULL, 
	phases JSON NOT NULL, 
	notices JSON NOT NULL, 
	summary JSON, 
	error VARCHAR NOT NULL, 
	owner_host VARCHAR NOT NULL, 
	owner_pid INTEGER NOT NULL, 
	owner_started DOUBLE NOT NULL
);
INSERT INTO "runs" VALUES(1,'memory, batch 128','done','',NULL,'','2026-11-20T16:39:29Z',23115.795017327,23119.601511019,'{"name": "", "dataset": "digits", "n_images": null, "model": "tiny", "strategy": "memory", "batch_size": 128, "epochs": null, "steps": 30, "seconds": null, "device": "auto", "precision": "fp32", "compile": false, "image_size": 28, "lr": 0.003, "seed": 42, "storage": "memory", "location": "disk", "loader": "batches", "transfer": "pinned", "workers": null, "prefetch_factor": null, "pin_memory": null, "persistent_workers": null, "start_method": null, "decoder": null, "shuffle": "full", "cache_mb": null, "slow_drive": null, "slow_mb_s": null, "slow_latency_ms": null, "stage_overlap": null, "augment": "off", "skip_unreadable": false, "page_cache": "as-is", "cudnn_benchmark": false, "warmup_steps": 5, "evaluate": false, "loader_only": false, "threads": 1, "isolation": "process", "telemetry_hz": 5.0}','{"device":"cpu","hostname":"elsewhere"}','{"storage_bytes": 54964224, "storage_prepare_s": 0.0, "page_cached_frac": 1.0, "cache_hit_frac": null, "n_unreadable": 0, "stage_s": 0.0, "stage_bytes": 0, "n_train": 60000, "cpu_s": 1.7599999999999998, "cpu_samples": 3200, "gpu_mem_peak_bytes": null}','[["startup", 23118.345829174, 23118.347768498], ["prepare", 23118.347780826, 23119.504081698], ["prepare", 23119.504728313, 23119.529501631], ["startup", 23119.529512037, 23119.534505368], ["shutdown", 23121.751783461, 23121.75180949]]','[]','{"n_steps": 30, "n_steady_steps": 25, "n_samples": 3840, "samples_per_s": 1825.3110517114696, "samples_per_s_low": 1786.2271189123996, "samples_per_s_high": 1851.3901851232445, "epoch_s": 32.87110980002126, "n_epochs_measured": 0, "step_ms_median": 69.39602700003888, "step_ms_p95": 71.28984560258687, "data_wait_frac": 0.0014615442345363343, "h2d_frac": 0.0, "compute_frac": 0.9979346805087804, "exposed_wait_frac": 0.0014615442345363343, "device_idle_frac": 0.002065319491219545, "gpu_util_pct_mean": null, "gpu_mem_peak_bytes": null, "rss_peak_bytes": 900706304.0, "cpu_s_per_sample": 0.0005499999999999999, "prepare_s": 1.1810741900007997, "storage_prepare_s": 0.0, "storage_bytes": 54964224.0, "stage_s": 0.0, "stage_bytes": 0.0, "page_cached_frac": 1.0, "cache_hit_frac": null, "n_unreadable": 0, "startup_s": 2.5584421629973804, "first_batch_s": 0.0010413140007585753, "epoch_restart_s": null, "evaluate_s": null, "shutdown_s": 2.6028999855043367e-05, "wall_s": 6.965889844999765, "loss_first": 2.29646897315979, "loss_last": 2.101980209350586, "test_loss": null, "test_accuracy": null}','','elsewhere',13534,1795192769.4);
CREATE TABLE steps (
	run_id INTEGER NOT NULL, 
	rank BIGINT NOT NULL, 
	step BIGINT NOT NULL, 
	epoch BIGINT, 
	t_start_s DOUBLE, 
	data_wait_s DOUBLE, 
	h2d_s DOUBLE, 
	compute_start_s DOUBLE, 
	compute_s DOUBLE, 
	gap_s DOUBLE, 
	exposed_wait_s DOUBLE, 
	step_s DOUBLE, 
	samples BIGINT, 
	loss DOUBLE, 
	warmup BIGINT, 
	read_s DOUBLE, 
	decode_s DOUBLE, 
	transform_s DOUBLE, 
	collate_s DOUBLE, 
	queue_depth DOUBLE, 
	PRIMARY KEY (run_id, step, rank)
)
 WITHOUT ROWID

;
INSERT INTO "steps" VALUES(1,0,0,0,23119.53453368,1.04131400075857527554e-03,0.0,23119.535579121,1.31178162002470344305e-01,1.05667699972400441765e-03,1.04131400075857527554e-03,1.32234839002194348722e-01,128,2.29646897315979,1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "steps" VALUES(1,0,1,0,23119.666821229,3.97203002648893743753e-04,0.0,23119.667224621,8.1868568999198032543e-02,4.67337998998118564486e-04,3.97203002648893743753e-04,8.23359069981961511075e-02,128,2.50989842414855957031e+00,1,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "steps" VALUES(1,0,2,0,23119.749145328,1.74419998074881732463e-04,0.0,23119.749325286,9.56423630013887304812e-02,2.32096001127501949667e-04,1.74419998074881732463e-04,9.58744590025162324309e-02,128,2.38566064834594726562e+00,1,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE telemetry (
	run_id INTEGER NOT NULL, 
	seq INTEGER NOT NULL, 
	t_s DOUBLE, 
	gpu_util_pct DOUBLE, 
	gpu_mem_used_bytes DOUBLE, 
	gpu_mem_job_bytes DOUBLE, 
	gpu_power_w DOUBLE, 
	gpu_sm_clock_mhz DOUBLE, 
	gpu_temp_c DOUBLE, 
	pcie_rx_bytes_per_s DOUBLE, 
	cpu_pct DOUBLE, 
	job_cpu_pct DOUBLE, 
	job_rss_bytes DOUBLE, 
	disk_read_bytes_per_s DOUBLE, 
	PRIMARY KEY (run_id, seq)
)
 WITHOUT ROWID

;
INSERT INTO "telemetry" VALUES(1,0,23118.385205394,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,790069248.0,NULL);
INSERT INTO "telemetry" VALUES(1,1,23118.588074968,NULL,NULL,NULL,NULL,NULL,NULL,NULL,9.52380952379714926757e+01,1.87312465100476288172e+02,812355584.0,0.0);
CREATE TABLE vitprof_store (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "vitprof_store" VALUES(1);
CREATE INDEX ix_runs_status ON runs (status);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',1);
COMMIT;
