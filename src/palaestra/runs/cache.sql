CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT, kind TEXT, data TEXT NOT NULL, made REAL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, owner TEXT, phase TEXT, model TEXT, key TEXT, started REAL,
                    ended INTEGER DEFAULT 0, measured INTEGER DEFAULT 0, priced INTEGER DEFAULT 1,
                    prompt_tokens INTEGER DEFAULT 0, completion_tokens INTEGER DEFAULT 0,
                    seconds REAL DEFAULT 0, money REAL DEFAULT 0);
CREATE TABLE IF NOT EXISTS hits (owner TEXT, phase TEXT, model TEXT, count INTEGER, PRIMARY KEY (owner, phase, model));
CREATE INDEX IF NOT EXISTS calls_of ON calls (owner, phase);
