CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE attempts (phase TEXT, problem TEXT, sample INTEGER, correct INTEGER, data TEXT NOT NULL,
                       PRIMARY KEY (phase, problem, sample));
CREATE TABLE lessons (round INTEGER PRIMARY KEY, decisions TEXT NOT NULL);
CREATE TABLE examples (round INTEGER, position INTEGER, skill TEXT, subskill TEXT, data TEXT NOT NULL,
                       PRIMARY KEY (round, position));
CREATE TABLE inspections (round INTEGER PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE deliveries (round INTEGER PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE skills (stage TEXT PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE trainings (round INTEGER PRIMARY KEY, weights_sha256 TEXT NOT NULL, steps INTEGER, seconds REAL);
CREATE TABLE curves (round INTEGER, step INTEGER, loss REAL, PRIMARY KEY (round, step));
CREATE TABLE metrics (iteration INTEGER, name TEXT, value REAL, PRIMARY KEY (iteration, name));
CREATE TABLE trajectories (iteration INTEGER, position INTEGER, reward REAL, data TEXT NOT NULL,
                           PRIMARY KEY (iteration, position));
CREATE TABLE texts (iteration INTEGER, position INTEGER, group_number INTEGER, text TEXT NOT NULL,
                    PRIMARY KEY (iteration, position));
CREATE TABLE steps (episode INTEGER, position INTEGER, data TEXT NOT NULL, PRIMARY KEY (episode, position));
CREATE TABLE ledger (id INTEGER PRIMARY KEY, phase TEXT, model TEXT, calls INTEGER, prompt_tokens INTEGER,
                     completion_tokens INTEGER, seconds REAL, money REAL);
