BEGIN TRANSACTION;
CREATE TABLE predictions (
	id INTEGER NOT NULL, 
	profile_run_id INTEGER NOT NULL, 
	micro_run_id INTEGER NOT NULL, 
	verified_run_id INTEGER, 
	config JSON NOT NULL, 
	created_utc VARCHAR NOT NULL, 
	samples_per_s DOUBLE NOT NULL, 
	low DOUBLE NOT NULL, 
	high DOUBLE NOT NULL, 
	measured_per_s DOUBLE, 
	PRIMARY KEY (id)
);
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
	verdict JSON, 
	group_key VARCHAR DEFAULT '' NOT NULL, 
	role VARCHAR DEFAULT '' NOT NULL, 
	error VARCHAR NOT NULL, 
	owner_host VARCHAR NOT NULL, 
	owner_pid INTEGER NOT NULL, 
	owner_started DOUBLE NOT NULL
);
INSERT INTO "runs" VALUES(1,'memory, batch 128, on simulated:2,10','done','',NULL,'','2026-11-20T19:40:27Z',33973.732819575,33980.8430565,'{"name": "", "dataset": "digits", "n_images": null, "model": "tiny", "strategy": "memory", "batch_size": 128, "epochs": null, "steps": 30, "seconds": null, "device": "simulated:2,10", "precision": "fp32", "compile": false, "image_size": 28, "lr": 0.003, "seed": 42, "storage": "memory", "location": "disk", "loader": "batches", "transfer": "pinned", "workers": null, "prefetch_factor": null, "pin_memory": null, "persistent_workers": null, "start_method": null, "decoder": null, "shuffle": "full", "cache_mb": null, "slow_drive": null, "slow_mb_s": null, "slow_latency_ms": null, "stage_overlap": null, "augment": "off", "skip_unreadable": false, "page_cache": "as-is", "cudnn_benchmark": false, "warmup_steps": 5, "replay": null, "inject": null, "loader_times": true, "evaluate": false, "loader_only": false, "threads": 1, "isolation": "thread", "telemetry_hz": 5.0}','{}','{"storage_bytes": 54964224, "storage_prepare_s": 0.0, "page_cached_frac": 1.0, "cache_hit_frac": null, "n_unreadable": 0, "stage_s": 0.0, "stage_bytes": 0, "n_train": 60000, "cpu_s": 0.019999999999999574, "cpu_samples": 3200, "gpu_mem_peak_bytes": null}','[["startup", 33978.022342452, 33978.027733487], ["prepare", 33978.027749451, 33980.791371462], ["prepare", 33980.79199305, 33980.821514593], ["startup", 33980.821526721, 33980.823074611], ["shutdown", 33980.944605988, 33980.944637936]]','[]','{"n_steps": 30, "n_steady_steps": 25, "n_samples": 3840, "samples_per_s": 38688.83534691615, "samples_per_s_low": 38688.83534691615, "samples_per_s_high": 38688.83534691615, "epoch_s": 1.5508350008985872, "n_epochs_measured": 0, "step_ms_median": 3.308448001916986, "step_ms_p95": 3.308448001916986, "data_wait_frac": 0.030605601401919723, "h2d_frac": 0.008598595088917305, "compute_frac": 0.9914014049110826, "exposed_wait_frac": 0.0, "device_idle_frac": 0.008598595088917305, "gpu_util_pct_mean": null, "gpu_mem_peak_bytes": null, "rss_peak_bytes": 866304000.0, "cpu_s_per_sample": null, "prepare_s": 2.79314355400129, "storage_prepare_s": 0.0, "storage_bytes": 54964224.0, "stage_s": 0.0, "stage_bytes": 0.0, "page_cached_frac": 1.0, "cache_hit_frac": null, "n_unreadable": 0, "startup_s": 4.29715008999483, "first_batch_s": 0.020840860001044348, "epoch_restart_s": null, "evaluate_s": null, "shutdown_s": 3.1948002288118005e-05, "wall_s": 7.215883707001922, "loss_first": null, "loss_last": null, "test_loss": null, "test_accuracy": null, "exposed_h2d_frac": 0.008598593660834325, "idle_host_frac": 0.0, "idle_recording_frac": 0.0, "recording_frac": 0.010226054501769874, "loader_times_frac": 8.734971791261664e-05, "read_ms": 0.05327560007572174, "decode_ms": 0.0, "transform_ms": 0.0, "collate_ms": 0.020111199701204896, "hand_over_ms": 0.007101721421349794, "queue_depth_mean": null}','{"kind": "not input-bound", "sentence": "Not input-bound: the simulated GPU idles 0.9% (0.9%, 25 steps) of the time waiting for data (waits and copies), so a faster loader gains at most 0.9%; the time is in the model: a larger model or batch costs no data loading.", "idle_frac": 0.008598593660834325, "idle_frac_low": 0.008598593660834323, "idle_frac_high": 0.008598593660834328, "host_frac": 0.0, "cause": "transfer", "cause_frac": 1.0, "cause_ms_per_batch": 0.028448, "shares": [{"name": "transfer", "frac": 1.0, "exposed_ms": 0.028448, "own_ms": 0.028448004741221666}], "speed_up_if_free": 1.0086731707317074, "speed_up_low": 1.0086731707317074, "speed_up_high": 1.0086731707317074, "speed_up_measured": false, "advice": [], "signatures": [], "n_steps": 25, "simulated": true}','','','','elsewhere',21673,1795203627.15);
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
	h2d_start_s DOUBLE, 
	host_s DOUBLE, 
	made_start_s DOUBLE, 
	made_end_s DOUBLE, 
	hand_over_s DOUBLE, 
	worker DOUBLE, 
	PRIMARY KEY (run_id, step, rank)
)
 WITHOUT ROWID

;
INSERT INTO "steps" VALUES(1,0,0,0,33980.823113219,2.08408600010443478822e-02,1.25096200645202770829e-03,33980.845229943,3.27999999717576429247e-03,2.21350110005005262792e-02,2.08408600010443478822e-02,2.54150109976762905716e-02,128,NULL,1,1.73598993569612503051e-04,0.0,0.0,1.3937800395069643855e-04,NULL,33980.843962932,1.2831050044042058289e-03,33980.843630246,33980.843943223,1.08559979707933962345e-05,NULL);
INSERT INTO "steps" VALUES(1,0,1,0,33980.845272807,8.55470061651431e-05,2.8448004741221666336e-05,33980.848538391,3.27999999717576429247e-03,2.8448004741221666336e-05,0.0,3.30844800191698595881e-03,128,NULL,1,4.83719995827414095401e-05,0.0,0.0,1.68850019690580666065e-05,NULL,3.39808485099429963163e+04,1.17355994007084518671e-04,33980.845286077,33980.845351334,7.02000397723168134689e-06,NULL);
INSERT INTO "steps" VALUES(1,0,2,0,33980.845484583,9.07749999896623194217e-05,2.8448004741221666336e-05,33980.851846839,3.27999999717576429247e-03,2.8448004741221666336e-05,0.0,3.30844800191698595881e-03,128,NULL,1,6.51280060992576181888e-05,0.0,0.0,8.02199792815372347831e-06,NULL,33980.851818391,8.9073000708594918251e-05,33980.845498323,33980.845571473,3.88499756809324e-06,NULL);
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
	job_cpu_wait_pct DOUBLE, 
	PRIMARY KEY (run_id, seq)
)
 WITHOUT ROWID

;
INSERT INTO "telemetry" VALUES(1,0,33978.196165292,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,765902848.0,NULL,NULL);
INSERT INTO "telemetry" VALUES(1,1,33978.396325493,0.0,NULL,NULL,NULL,NULL,NULL,NULL,100.0,3.99679854440886330726e+01,776851456.0,7.57153516252814326415e+05,2.32312235239576864382e+02);
CREATE TABLE vitprof_store (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "vitprof_store" VALUES(2);
CREATE INDEX ix_runs_group_key ON runs (group_key);
CREATE INDEX ix_runs_status ON runs (status);
CREATE INDEX ix_predictions_profile_run_id ON predictions (profile_run_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',1);
COMMIT;
